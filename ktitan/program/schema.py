"""How the children of a module hang together: its forward as a list of calls, sums and products."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ktitan.operator import probing
from ktitan.program.draft import Extra
from ktitan.program.solve import Formula, Solver
from ktitan.program.traced import Called, Tracing, arguments_of, tensors_in
from ktitan.shells import PROBE_FAULTS

__all__ = ["Answers", "ChildCall", "Schema", "layer_schema", "solve_calls"]

# Children of a layer that answer with a tuple are found one after another.
_MOST_TUPLES = 4


@dataclass(frozen=True)
class ChildCall:
    """A child is called with the value `given`.

    Attributes:
        path: of the child, below the module.
        given: number of a value; None for the input of the whole model.
        width: numbers a token of its answer.
        extra: what else it gets; None where that is unknown.
    """

    path: str
    given: int | None
    width: int
    extra: Extra | None


@dataclass
class Schema:
    """The values of a forward: each was given (None, the first), is a formula, or the answer of a child.

    Attributes:
        values: in order.
        result: number of the value that the forward returns.
    """

    values: list[Formula | ChildCall | None] = field(default_factory=list)
    result: int = 0


class Answers:
    """What stand-ins answer: fresh random numbers, as wide as the child's output."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, module: nn.Module, given: torch.Tensor) -> torch.Tensor:
        """[1, T, width] for a child that got [1, T, ...]."""
        width = next(
            (
                size
                for name in ("out_features", "embedding_dim")
                if isinstance(size := getattr(module, name, None), int)
            ),
            given.shape[-1],
        )
        return self.random(*given.shape[:2], width)

    def random(self, *shape: int) -> torch.Tensor:
        """Normal numbers."""
        return torch.randn(shape, generator=self._generator)


def layer_schema(layer: nn.Module, called: Called, number: int) -> Schema | str:
    """How a decoder layer computes, or the reason why that cannot be told.

    Args:
        layer: the layer.
        called: how the stock model calls it.
        number: of the layer.
    """
    tuples: frozenset[str] = frozenset()
    with probing():
        for _ in range(_MOST_TUPLES):
            answers = Answers(seed=number)
            tracing = Tracing(answers, tuples)
            hidden = answers.random(*called.given.shape)
            names = arguments_of(layer, called.args, called.kwargs)
            kwargs = {name: hidden if value is called.given else value for name, value in names.items()}
            try:
                returned = type(layer).forward(tracing.shell(layer), **kwargs)
            except PROBE_FAULTS as error:
                if not tracing.last or tracing.last in tuples:
                    return f"its forward could not be tried: {error}"
                tuples |= {tracing.last}
                continue
            return _layer_of(tracing, hidden, returned, kwargs, number)
    return "its forward could not be tried"


def _layer_of(
    tracing: Tracing, hidden: torch.Tensor, returned: Any, kwargs: Mapping[str, Any], number: int
) -> Schema | str:
    result = next(tensors_in(returned), None)
    if result is None:
        return "its forward returns no tensor"
    return solve_calls(tracing.calls, result, hidden, lambda call: _extra(call, kwargs, hidden, number))


def solve_calls(
    calls: list[Called],
    result: torch.Tensor,
    hidden: torch.Tensor | None,
    extra: Callable[[Called], Extra | None],
) -> Schema | str:
    """The schema of the calls that were seen.

    Args:
        calls: in order.
        result: what the forward returned.
        hidden: its input; None: the first child gets what is no value.
        extra: what else a child got.
    """
    solver, schema = Solver(), Schema()

    def catch_up() -> None:
        schema.values += [known.formula for known in solver.values[len(schema.values) :]]

    if hidden is not None:
        solver.know(hidden)
        catch_up()
    for call in calls:
        if call.earnest:
            continue
        first = hidden is None and not solver.values
        given = None if first else solver.solve(call.given)
        if given is None and not first:
            return f"what it hands to {call.path} is no sum or multiple of what it has"
        catch_up()
        solver.know(call.answer)
        schema.values.append(ChildCall(call.path, given, call.answer.shape[-1], extra(call)))
    found = solver.solve(result)
    if found is None:
        return "what it returns is no sum or multiple of what it has"
    catch_up()
    schema.result = found
    return schema


def _extra(call: Called, kwargs: Mapping[str, Any], hidden: torch.Tensor, number: int) -> Extra | None:
    """Where the further arguments of a child come from: the layer's own arguments, or plain constants."""
    shared: dict[str, str] = {}
    constant: dict[str, Any] = {}
    for name, value in arguments_of(call.module, call.args, call.kwargs).items():
        if value is call.given:
            continue
        # A name that both have is handed on, whatever it is now: masks are None in some steps only.
        same = name if name in kwargs and kwargs[name] is value else None
        source = same or next((key for key, one in kwargs.items() if one is value and value is not hidden), None)
        if source is not None and (same or not _is_plain(value)):
            shared[name] = source
        elif _is_plain(value):
            constant[name] = value
        else:
            return None
    return Extra(number if shared else None, shared, constant)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)
