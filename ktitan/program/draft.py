"""What a builder has written down so far: operations and calls of modules on numbered values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ktitan.native.program import Buffer, Operation

__all__ = ["Call", "Draft", "Extra"]


@dataclass(frozen=True)
class Extra:
    """What a call gets beside its inputs.

    Attributes:
        layer: number of the decoder layer whose arguments these are; None: no arguments of a layer are needed.
        shared: keyword of the call -> keyword of the layer.
        constant: keyword of the call -> value.
    """

    layer: int | None = None
    shared: Mapping[str, str] = field(default_factory=dict)
    constant: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Call:
    """A call of a module in Python, between two native parts.

    Attributes:
        module: is called with views of its inputs, [1, T, width] of one, [T, width] of several; with the ids [1, T]
            where it has none.
        inputs: numbers of values.
        output: number of the value that the result is copied to.
        path: of the module.
        reason: why it is not lowered.
        extra: further arguments; None: it has some, but nobody knows which.
    """

    module: nn.Module
    inputs: tuple[int, ...]
    output: int
    path: str
    reason: str
    extra: Extra | None = Extra()

    @property
    def outputs(self) -> tuple[int, ...]:
        """As an operation has them."""
        return (self.output,)


@dataclass
class Draft:
    """A program that is being written.

    Attributes:
        items: in order.
        values: what each numbered value is.
    """

    items: list[Operation | Call] = field(default_factory=list)
    values: list[Buffer] = field(default_factory=list)

    def value(self, buffer: Buffer) -> int:
        """The number of a new value."""
        self.values.append(buffer)
        return len(self.values) - 1

    def mark(self) -> tuple[int, int]:
        """How long it is, for `rewind`."""
        return len(self.items), len(self.values)

    def rewind(self, mark: tuple[int, int]) -> None:
        """Strike what was written since `mark`."""
        del self.items[mark[0] :]
        del self.values[mark[1] :]
