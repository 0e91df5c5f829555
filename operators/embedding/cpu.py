"""`embedding.cpu`: rows of a token table that stays as it is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ktitan.errors import UnsupportedError
from ktitan.native import PackedMatrix, embedding
from ktitan.operator import MemoryNeed, ModuleWeights, Operator, OperatorConfig, OperatorContext
from ktitan.operators.embedding.torch import TorchEmbedding, embedding_scale
from ktitan.operators.linear.cpu import CpuLinearConfig
from ktitan.operators.packed import PackedState, layout_reason, packed_need, read_matrix, rows_reason
from ktitan.registry import register_operator

if TYPE_CHECKING:
    from ktitan.lowering import Builder, Value

__all__ = ["CpuEmbedding"]


@register_operator("embedding.cpu")
class CpuEmbedding(PackedState, Operator):
    """Rows of W [V, H], dequantised when they are asked for; ids [...] int64 -> [..., H] in the model's dtype.

    Times `scale` (rounded to that dtype) where the stock class does. The kwargs are those of `linear.cpu`, which may
    share the table; activations play no part here.
    """

    Config = CpuLinearConfig
    matrix: PackedMatrix

    def __init__(self, module: Any, context: OperatorContext) -> None:
        super().__init__()
        self.path = context.path
        self.num_embeddings = int(module.num_embeddings)
        self.embedding_dim = int(module.embedding_dim)
        self.padding_idx = module.padding_idx
        self.dtype = module.weight.dtype
        self.scale = embedding_scale(module)
        self.activations = "float32"  # a look-up has none to round

    @classmethod
    def supports(cls, context: OperatorContext, config: CpuLinearConfig) -> str | None:
        """What `embedding.torch` supports, on the CPU, where the table's rows are stored whole and in one format."""
        reason = TorchEmbedding.supports(context, OperatorConfig()) or layout_reason(context, config, ["weight"])
        if reason is not None:
            return reason
        layout = context.layouts["weight"]
        return rows_reason(layout, "weight", 0, layout.rows)

    @classmethod
    def from_module(cls, module: nn.Module, config: CpuLinearConfig, context: OperatorContext) -> CpuEmbedding:
        """Shapes and scale from `module`; no memory is taken until `load`."""
        return cls(module, context)

    def load(self, weights: ModuleWeights) -> None:
        """Take the stored rows."""
        self.matrix = weights.once("weight", lambda: read_matrix(weights, "weight", 0, self.num_embeddings))

    def cast(self, dtype: torch.dtype) -> None:
        """Rows come in the new dtype."""
        self.dtype = dtype

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """[...] int64 -> [..., H].

        Raises:
            UnsupportedError: an id is outside of the table, or `input` is not on the CPU.
        """
        rows = embedding(input, self.matrix, self.dtype)
        return rows if self.scale is None else rows * torch.tensor(self.scale, dtype=rows.dtype, device=rows.device)

    def lower(self, builder: Builder) -> Value:  # type: ignore[override]
        """The step's ids -> [T, H].

        Raises:
            UnsupportedError: rows come in another dtype than float32.
        """
        self.check_float32()
        return builder.rows(self.matrix, 1.0 if self.scale is None else self.scale)

    def check_float32(self) -> None:
        """Raise where a program cannot hold the rows.

        Raises:
            UnsupportedError: they come in another dtype than float32.
        """
        if self.dtype is not torch.float32:
            raise UnsupportedError(f"its rows are {self.dtype}", self.path, "load the model in float32")

    def held(self) -> tuple[PackedMatrix, ...]:
        """The matrix, once it is loaded."""
        return (self.matrix,) if "matrix" in vars(self) else ()

    @classmethod
    def memory(cls, context: OperatorContext, config: CpuLinearConfig) -> MemoryNeed:
        """The table as stored."""
        need = packed_need(context, config, ["weight"])
        return MemoryNeed(need.resident_bytes, need.format, need.kernel.replace(" x int8", ""))

    def extra_repr(self) -> str:
        """Sizes, as nn.Embedding prints them, and the format."""
        stored = self.matrix.format if "matrix" in vars(self) else "not loaded"
        return f"{self.num_embeddings}, {self.embedding_dim}, scale={self.scale}, {stored}"
