"""`mlp.cpu`: what stands between the products of an MLP, on the CPU in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from ktitan.errors import UnsupportedError
from ktitan.native.norms import activate
from ktitan.operator import OperatorConfig, OperatorContext
from ktitan.operators.block import KeptBlock
from ktitan.operators.float32 import float32_reason, runs_natively
from ktitan.operators.mlp.parts import MlpParts, read_parts
from ktitan.operators.stock import KEEP_REMEDY
from ktitan.registry import register_operator

if TYPE_CHECKING:
    from ktitan.lowering import Builder, Value

__all__ = ["CpuMlp"]


@register_operator("mlp.cpu")
class CpuMlp(KeptBlock):
    """down(act(gate(x)) * up(x)), or down(act(up(x))): [..., H] -> [..., H]. The stock linear layers stay its children.

    The activation is that of the experts' operators, with the same bits everywhere (csrc/cpu/README.md).
    """

    def __init__(self, module: nn.Module, parts: MlpParts, context: OperatorContext) -> None:
        super().__init__(module, context)
        self.parts = parts

    @classmethod
    def supports(cls, context: OperatorContext, config: OperatorConfig) -> str | None:
        """MLPs of two or three linear layers whose numbers, on random inputs, are those of the formula."""
        reason = float32_reason(context)
        if reason is not None:
            return reason
        parts = read_parts(context.module)
        return parts if isinstance(parts, str) else None

    @classmethod
    def from_module(cls, module: nn.Module, config: OperatorConfig, context: OperatorContext) -> CpuMlp:
        """Names and activation from `module`.

        Raises:
            UnsupportedError: the module is no such MLP.
        """
        parts = read_parts(module)
        if isinstance(parts, str):
            raise UnsupportedError(parts, context.path, KEEP_REMEDY)
        return cls(module, parts, context)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., H] -> [..., H]."""
        if not runs_natively(x, self):
            return self.stock_twin()(x)
        parts = self.parts
        up = getattr(self, parts.up)(x)
        if parts.gate is None:
            return getattr(self, parts.down)(activate(parts.activation, up, None))
        return getattr(self, parts.down)(activate(parts.activation, getattr(self, parts.gate)(x), up))

    def lower(self, builder: Builder, x: Value) -> Value:  # type: ignore[override]
        """x [T, H] -> [T, H]; the children are lowered on their own."""
        parts = self.parts
        up = builder.module(getattr(self, parts.up), x, width=parts.inner)
        gate = up if parts.gate is None else builder.module(getattr(self, parts.gate), x, width=parts.inner)
        inner = builder.activate(parts.activation, gate, None if parts.gate is None else up)
        return builder.module(getattr(self, parts.down), inner, width=parts.hidden)

    def extra_repr(self) -> str:
        """Sizes and activation."""
        return f"hidden={self.parts.hidden}, inner={self.parts.inner}, {self.parts.activation}"
