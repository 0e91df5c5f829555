"""Running stock forwards of a whole model or a layer with stand-ins for children, to see who gets what.

Nothing is computed: decoder layers, norms, embedding and head answer with random numbers, so only what stands between
them runs, and the modules that make position embeddings, which are called.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ktitan.shells import shell_of

__all__ = ["Called", "Tracing", "arguments_of", "tensors_in"]

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs")


@dataclass(frozen=True)
class Called:
    """A child was called.

    Attributes:
        path: of the child, below the module whose forward ran.
        module: the child.
        args, kwargs: what it got.
        answer: its first tensor, or all that a module answered that was called in earnest.
        earnest: it was called, not stood in for.
    """

    path: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    answer: Any
    earnest: bool

    @property
    def given(self) -> torch.Tensor:
        """The first tensor that it got."""
        return next(tensors_in((*self.args, *self.kwargs.values())))


class Tracing:
    """The calls of one forward.

    Args:
        answer: what stand-ins answer: (child, its first tensor) -> tensor.
        tuples: paths of the children that answer with a tuple.

    Attributes:
        calls: in order.
    """

    def __init__(
        self, answer: Callable[[nn.Module, torch.Tensor], torch.Tensor], tuples: frozenset[str] = frozenset()
    ) -> None:
        self.calls: list[Called] = []
        self.last = ""
        self.answer = answer
        self.tuples = tuples

    def shell(self, module: nn.Module, open_paths: frozenset[str] = frozenset(), path: str = "") -> nn.Module:
        """`module` with stand-ins for its children.

        Args:
            module: whose forward is to run.
            open_paths: paths of modules whose own forwards run, too, on stand-ins for their children; lists of modules
                are looked into anyway.
            path: of `module`.
        """
        made: dict[str, nn.Module] = {}
        for name, child in module._modules.items():
            if child is None:
                continue
            below = f"{path}.{name}" if path else name
            if isinstance(child, nn.ModuleList):
                made[name] = nn.ModuleList(_StandIn(self, f"{below}.{at}", one) for at, one in enumerate(child))
            elif below in open_paths:
                made[name] = self.shell(child, open_paths, below)
            else:
                made[name] = _StandIn(self, below, child)
        shell = shell_of(module, made)
        vars(shell).update({table: OrderedDict() for table in _HOOKS})
        return shell


class _StandIn(nn.Module):
    def __init__(self, tracing: Tracing, path: str, module: nn.Module) -> None:
        super().__init__()
        self._tracing = tracing
        self._path = path
        self._module = (module,)  # in a tuple: no child

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            return super().__getattr__(name)
        return getattr(self._module[0], name)  # some forwards read attributes of their children

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        (module,), tracing = self._module, self._tracing
        tracing.last = self._path
        if makes_positions(module):
            made = module(*args, **kwargs)
            tracing.calls.append(Called(self._path, module, args, kwargs, made, True))
            return made
        given = next(tensors_in((*args, *kwargs.values())), None)
        if given is None:
            raise TypeError(f"{self._path} was called without a tensor")
        answer = tracing.answer(module, given)
        tracing.calls.append(Called(self._path, module, args, kwargs, answer, False))
        return (answer, None) if self._path in tracing.tuples else answer


def makes_positions(module: nn.Module) -> bool:
    """Whether a module is one of those that turn positions into cosines and sines: without weights, by its name."""
    return "rotary" in type(module).__name__.lower() and not any(True for _ in module.parameters())


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """All tensors in tuples, lists and dicts."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, Mapping):
        yield from tensors_in(tuple(values.values()))
    elif isinstance(values, tuple | list):
        for one in values:
            yield from tensors_in(one)


def arguments_of(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by their names in the module's forward."""
    bound = inspect.signature(module.forward).bind_partial(*args, **kwargs)
    names: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        names.update(value if kind is inspect.Parameter.VAR_KEYWORD else {name: value})
    return names
