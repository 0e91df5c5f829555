"""The routed experts of one layer as packed matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ktitan.errors import FormatError
from ktitan.native.matrix import PackedMatrix

__all__ = ["ACTIVATIONS", "ExpertBank"]

# Names of the functions between the products, in the order of enum kt_activation (csrc/cpu/kernels.h).
ACTIVATIONS = ("silu", "gelu_tanh")


@dataclass(eq=False)  # not frozen: torch.compile takes no frozen dataclass for a constant
class ExpertBank:
    """E experts: y = down(act(gate x) * up x), without gate y = down(act(up x)); each product may add a bias.

    Attributes:
        experts: E.
        gate: [E * I, H], or None when the experts have no gate.
        up: [E * I, H].
        down: [E * H, I].
        activation: "silu" or "gelu_tanh"; with a gate it acts on the gate, otherwise on up.
        gate_bias, up_bias: float32 [E, I] or None.
        down_bias: float32 [E, H] or None.

    Raises:
        FormatError: sizes do not fit each other, or the activation is unknown.
    """

    experts: int
    gate: PackedMatrix | None
    up: PackedMatrix
    down: PackedMatrix
    activation: str
    gate_bias: torch.Tensor | None = None
    up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> ExpertBank:
        return self  # like its matrices, nothing writes it once it is loaded

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise FormatError(
                f"activation {self.activation!r} between expert products",
                remedy=f"use one of: {', '.join(ACTIVATIONS)}",
            )
        self._check_matrices()
        self._check_bias("gate_bias", self.gate_bias, self.intermediate)
        self._check_bias("up_bias", self.up_bias, self.intermediate)
        self._check_bias("down_bias", self.down_bias, self.hidden)

    @property
    def hidden(self) -> int:
        """H, the width of the residual stream."""
        return self.up.columns

    @property
    def intermediate(self) -> int:
        """I, the width between the products."""
        return self.down.columns

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices and biases."""
        matrices = self.up.nbytes + self.down.nbytes + (self.gate.nbytes if self.gate is not None else 0)
        biases = (self.gate_bias, self.up_bias, self.down_bias)
        return matrices + sum(bias.nbytes for bias in biases if bias is not None)

    def _check_matrices(self) -> None:
        first = self.experts * self.intermediate, self.hidden
        wanted = [("up", self.up, first), ("down", self.down, (self.experts * self.hidden, self.intermediate))]
        if self.gate is not None:
            wanted.append(("gate", self.gate, first))
        for name, matrix, shape in wanted:
            if self.experts < 1 or (matrix.rows, matrix.columns) != shape:
                raise FormatError(
                    f"{name} is [{matrix.rows}, {matrix.columns}], not {list(shape)}, for {self.experts} experts",
                    name,
                    "stack gate and up as [E * I, H] and down as [E * H, I]",
                )

    def _check_bias(self, name: str, bias: torch.Tensor | None, width: int) -> None:
        if bias is None:
            return
        shape = (self.experts, width)
        if name == "gate_bias" and self.gate is None:
            raise FormatError("a gate bias without a gate", name, "leave the bias out, or give the gate")
        fits = bias.dtype == torch.float32 and tuple(bias.shape) == shape
        if not (fits and bias.device.type == "cpu" and bias.is_contiguous()):
            raise FormatError(
                f"{name} is {bias.dtype} {list(bias.shape)} on {bias.device}, or not contiguous",
                name,
                f"give a contiguous float32 tensor {list(shape)} on the CPU",
            )
