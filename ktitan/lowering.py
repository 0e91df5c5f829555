"""What operators append themselves to: the builder of a step program, and the values that go from one to the next.

Shape letters: T tokens of a step, packed in one row; H width of the residual stream; K experts a token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ktitan.native import ExpertBank, PackedMatrix

__all__ = ["Builder", "Routed", "Value"]


@dataclass(frozen=True)
class Value:
    """A result of one operation, float32 [T, width] unless its maker says otherwise.

    Attributes:
        buffer: its number in the program.
        width: numbers a token.
    """

    buffer: int
    width: int


@dataclass(frozen=True)
class Routed:
    """The experts of each token: index [T, K] int64 and weights [T, K] float32."""

    index: Value
    weights: Value
    chosen: int


class Builder(ABC):
    """Appends operations; each method returns the value that it makes.

    `module` is what operators call for their children: whatever stands there is lowered, or called in Python between
    two native parts when it cannot be.
    """

    @abstractmethod
    def module(self, module: nn.Module, *inputs: Value, width: int) -> Value:
        """What `module(*inputs)` gives, [T, width]: lowered where it can be, else a call of the module itself."""

    @abstractmethod
    def rows(self, table: Any, factor: float = 1.0) -> Value:
        """Rows of the step's token ids from a `PackedMatrix` or `StreamTable`, times `factor`."""

    @abstractmethod
    def norm(self, x: Value, weight: torch.Tensor | None, eps: float, unit_offset: bool = False) -> Value:
        """The RMS norm of each group of `len(weight)` numbers (of all of them without weight)."""

    @abstractmethod
    def linear(
        self, x: Value, weight: PackedMatrix | Any, bias: torch.Tensor | None, activations: str, order: Any = None
    ) -> Value:
        """W x + b with a `PackedMatrix` or `StreamMatrix`; `order`: result i is stored row order[i]."""

    @abstractmethod
    def heads(self, x: Value, weight: PackedMatrix, heads: int) -> Value:
        """Each head's own matrix: weight [heads * N, D], x [T, heads * D] -> [T, heads * N]."""

    @abstractmethod
    def rotate(self, x: Value, rotation: Any, heads: int, layer: Any) -> Value:
        """x with its heads turned by the step's positions (`ktitan.native.attention.Rotation`); `layer` is the
        attention module, which tells which table of positions the stock model hands it.
        """

    @abstractmethod
    def columns(self, x: Value, first: int, count: int, groups: int = 1) -> Value:
        """Columns [first, first + count) of each of `groups` groups."""

    @abstractmethod
    def joined(self, parts: tuple[Value, ...], groups: int = 1) -> Value:
        """The parts side by side in each of `groups` groups."""

    @abstractmethod
    def append(self, layer: int, keys: Value, values: Value, spec: Any) -> None:
        """Store what a `KVLayerSpec` describes in the pool."""

    @abstractmethod
    def attend(self, layer: int, query: Value, attention: Any) -> Value:
        """Attention of `query` on what the pool holds (`ktitan.native.attention.Attention`)."""

    @abstractmethod
    def activate(self, name: str, gate: Value, up: Value | None) -> Value:
        """act(gate) * up; `name` as in ktitan.native.bank.ACTIVATIONS."""

    @abstractmethod
    def add(self, a: Value, b: Value) -> Value:
        """a + b."""

    @abstractmethod
    def scale(self, x: Value, factor: float) -> Value:
        """x * factor."""

    @abstractmethod
    def gate(self, x: Value, scores: Value) -> Value:
        """x * sigmoid(scores), with one score a token."""

    @abstractmethod
    def route(self, x: Value, router: Any) -> Routed:
        """Choose experts (`ktitan.native.routing.Router`)."""

    @abstractmethod
    def experts(self, x: Value, routed: Routed, bank: ExpertBank | Any, activations: str) -> Value:
        """The weighted sum of the chosen experts of an `ExpertBank` or `StreamBank`."""

    @abstractmethod
    def foresee(self, x: Value, store: Any, predictor: Any) -> None:
        """Let the store read ahead for the next layer."""
