"""Running a stock forward with stand-ins for its children, to see what it hands to whom. No weight of them is used."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

__all__ = ["PROBE_FAULTS", "Call", "StandIn", "float32_copy", "shell_of"]

# What the forward of a class that nobody here has seen may raise when it is tried on random numbers.
PROBE_FAULTS = (TypeError, ValueError, RuntimeError, AttributeError, LookupError, AssertionError, NotImplementedError)


@dataclass(frozen=True)
class Call:
    """A child was called.

    Attributes:
        name: of the child.
        given: its first tensor.
        answer: what it answered, without what else may be in a tuple.
        rest: all its tensors.
    """

    name: str
    given: torch.Tensor
    answer: torch.Tensor
    rest: tuple[torch.Tensor, ...]


class StandIn(nn.Module):
    """Stands for the child `name`: notes each call and answers with `answer(first tensor)`."""

    def __init__(self, name: str, calls: list[Call], answer: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.name, self.calls, self.answer = name, calls, answer

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What `answer` says.

        Raises:
            TypeError: the child was called without a tensor.
        """
        tensors = tuple(value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))
        if not tensors:
            raise TypeError(f"{self.name} was called without a tensor")
        answer = self.answer(tensors[0])
        first = answer[0] if isinstance(answer, tuple) else answer
        self.calls.append(Call(self.name, tensors[0], first, tensors))
        return answer


def shell_of(module: nn.Module, children: Mapping[str, nn.Module]) -> nn.Module:
    """`module` with other children, in eval mode; attributes are shared, its own tensors float32 on the CPU."""
    shell = copy.copy(module)
    tensors = {
        table: {name: None if one is None else _plain(one) for name, one in vars(module)[table].items()}
        for table in ("_parameters", "_buffers")
    }
    vars(shell).update(_modules=dict(children), training=False, **tensors)
    return shell


def float32_copy(module: nn.Module) -> nn.Module:
    """A copy on the CPU whose floats are float32."""
    return copy.deepcopy(module).to("cpu", torch.float32)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().to("cpu")
    return plain.to(torch.float32) if plain.is_floating_point() else plain
