"""Sizes of weights whose bytes are elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ktitan.formats import find_format

__all__ = ["ExpertShape", "MatrixShape"]


@dataclass(frozen=True)
class MatrixShape:
    """A matrix [rows, columns] of a storage format."""

    format: str
    rows: int
    columns: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return find_format(self.format, "").row_bytes(self.columns)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.rows * self.row_bytes


@dataclass(frozen=True)
class ExpertShape:
    """The experts of a layer, as in `ExpertBank`, each with matrices of its own.

    Attributes:
        experts: E.
        gate: [I, H] of one expert, or None.
        up: [I, H].
        down: [H, I].
        activation: "silu" or "gelu_tanh".
        gate_bias, up_bias: float32 [E, I] or None.
        down_bias: float32 [E, H] or None.
    """

    experts: int
    gate: MatrixShape | None
    up: MatrixShape
    down: MatrixShape
    activation: str
    gate_bias: torch.Tensor | None = None
    up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None
