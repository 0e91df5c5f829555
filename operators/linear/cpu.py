"""`linear.cpu`: the matrix product on the CPU with weights as they are stored, quantised or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import StrictBool
from torch import nn

from ktitan.native import PackedMatrix, linear
from ktitan.operator import MemoryNeed, ModuleWeights, Operator, OperatorConfig, OperatorContext
from ktitan.operators.linear.torch import TorchLinear, TorchLinearConfig
from ktitan.operators.packed import PackedState, layout_reason, packed_need, read_matrix, rows_reason
from ktitan.operators.stock import take_bias
from ktitan.registry import register_operator

if TYPE_CHECKING:
    from ktitan.lowering import Builder, Value

__all__ = ["CpuLinear", "CpuLinearConfig"]


@dataclass(frozen=True)
class CpuLinearConfig(OperatorConfig):
    """Kwargs of `linear.cpu`.

    Attributes:
        activations: "int8" rounds the input of packed weights to 8 bits per row and block, as the arithmetic contract
            says; "float32" dequantises the weights instead: exact and slow, for comparisons.
        only_packed: refuse weights stored as plain floats.
    """

    activations: Literal["int8", "float32"] = "int8"
    only_packed: StrictBool = False


@register_operator("linear.cpu")
class CpuLinear(PackedState, Operator):
    """y = x W^T + b; x [..., H] -> y [..., N] in x's dtype.

    W [N, H] keeps its stored rows. The bits of y depend on x and the weights only: not on the instruction set, the
    number of threads or of rows (csrc/cpu/README.md).
    """

    Config = CpuLinearConfig
    bias: torch.Tensor | None
    matrix: PackedMatrix

    def __init__(self, module: Any, config: CpuLinearConfig, context: OperatorContext) -> None:
        super().__init__()
        self.path = context.path
        self.in_features = int(module.in_features)
        self.out_features = int(module.out_features)
        self.activations = config.activations
        self.has_bias = module.bias is not None
        self.bias = None

    @classmethod
    def supports(cls, context: OperatorContext, config: CpuLinearConfig) -> str | None:
        """What `linear.torch` supports, on the CPU, where the weight's rows are stored whole and in one format."""
        reason = TorchLinear.supports(context, TorchLinearConfig()) or layout_reason(context, config, ["weight"])
        if reason is not None:
            return reason
        layout = context.layouts["weight"]
        return rows_reason(layout, "weight", 0, layout.rows)

    @classmethod
    def from_module(cls, module: nn.Module, config: CpuLinearConfig, context: OperatorContext) -> CpuLinear:
        """Shapes from `module`; no memory is taken until `load`."""
        return cls(module, config, context)

    def load(self, weights: ModuleWeights) -> None:
        """Take the stored rows of `weight`, and `bias` as float32."""
        self.matrix = weights.once("weight", lambda: read_matrix(weights, "weight", 0, self.out_features))
        self.bias = take_bias(weights, "bias") if self.has_bias else None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """[..., H] -> [..., N].

        Raises:
            UnsupportedError: `input` is not on the CPU, or of a dtype other than float32, bfloat16, float16.
        """
        return linear(input, self.matrix, self.bias, self.activations)

    def lower(self, builder: Builder, x: Value) -> Value:  # type: ignore[override]
        """[T, H] -> [T, N]."""
        return builder.linear(x, self.matrix, self.bias, self.activations)

    def held(self) -> tuple[PackedMatrix, ...]:
        """The matrix, once it is loaded."""
        return (self.matrix,) if "matrix" in vars(self) else ()

    @classmethod
    def memory(cls, context: OperatorContext, config: CpuLinearConfig) -> MemoryNeed:
        """The weight as stored, the bias in float32."""
        need = packed_need(context, config, ["weight"])
        bias = context.module._parameters.get("bias")
        extra = 0 if bias is None else 4 * bias.numel()
        return MemoryNeed(need.resident_bytes + extra, need.format, need.kernel)

    def extra_repr(self) -> str:
        """Sizes, as nn.Linear prints them, and the format."""
        stored = self.matrix.format if "matrix" in vars(self) else "not loaded"
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.has_bias}, {stored}"
