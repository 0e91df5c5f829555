"""`norm.cpu`: root-mean-square norms in float32 by the native library."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ktitan.errors import UnsupportedError
from ktitan.native import backend
from ktitan.native.norms import rms_norm
from ktitan.operator import MemoryNeed, OperatorConfig, OperatorContext
from ktitan.operators.float32 import float32_reason, runs_natively
from ktitan.operators.norm import TorchNorm
from ktitan.registry import register_operator

if TYPE_CHECKING:
    from ktitan.lowering import Builder, Value

__all__ = ["CpuNorm"]


@register_operator("norm.cpu")
class CpuNorm(TorchNorm):
    """RMS norm with weight [H]: [..., H] -> [..., H] in float32.

    The bits depend on the row and the weight only (csrc/cpu/README.md). Forms that differ in where they round to half
    precision are one in float32. Calls that cannot be native (`runs_natively`) compute as `norm.torch` does.
    """

    @classmethod
    def supports(cls, context: OperatorContext, config: OperatorConfig) -> str | None:
        """What `norm.torch` supports, in float32 on the CPU, where the native library is there."""
        reason = float32_reason(context) or super().supports(context, config)
        if reason is not None:
            return reason
        weight: Any = context.module.weight
        if weight.dtype is not torch.float32:
            return f"it computes in float32, its weight is {str(weight.dtype).removeprefix('torch.')}"
        return None

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[..., H] -> [..., H]."""
        if not self._is_float32 or not runs_natively(hidden_states, self):
            return super().forward(hidden_states)
        return rms_norm(hidden_states, self.weight, self.eps, self.form.unit_offset)

    def lower(self, builder: Builder, x: Value) -> Value:  # type: ignore[override]
        """The norm of `x`, in groups of H numbers.

        Raises:
            UnsupportedError: the model was cast to another dtype.
        """
        if not self._is_float32:
            raise UnsupportedError(f"its weight is {self.weight.dtype}", self.path, "load the model in float32")
        return builder.norm(x, self.weight, self.eps, self.form.unit_offset)

    @classmethod
    def memory(cls, context: OperatorContext, config: OperatorConfig) -> MemoryNeed:
        """The weight."""
        return replace(super().memory(context, config), kernel=f"{backend().name} f32")

    @property
    def _is_float32(self) -> bool:
        return self.weight.dtype is torch.float32
