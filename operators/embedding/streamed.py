"""`embedding.streamed`: rows of a token table that stays in its file and is read row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ktitan.errors import UnsupportedError
from ktitan.native.streams import stream_rows
from ktitan.operator import MemoryNeed, ModuleWeights, OperatorContext, StreamNeed
from ktitan.operators.embedding.cpu import CpuEmbedding
from ktitan.operators.linear.cpu import CpuLinearConfig
from ktitan.operators.streamed import NO_RECORD, Entered, no_library, shape_of, store_of
from ktitan.registry import register_operator

if TYPE_CHECKING:
    from ktitan.lowering import Builder, Value

__all__ = ["StreamedEmbedding"]


@register_operator("embedding.streamed")
class StreamedEmbedding(CpuEmbedding):
    """Rows of W [V, H], read when they are asked for; ids [...] int64 -> [..., H], with the bits of `embedding.cpu`."""

    homes = ("nvme",)
    streams = True

    @classmethod
    def supports(cls, context: OperatorContext, config: CpuLinearConfig) -> str | None:
        """What `embedding.cpu` supports, where the rows are in files in their order and there is a native library."""
        reason = super().supports(context, config) or no_library("embedding.cpu")
        if reason is None:
            found = context.stored_rows("weight", 0, context.layouts["weight"].rows, None)
            reason = NO_RECORD if found is None or found.order is not None else None
        return reason

    def load(self, weights: ModuleWeights) -> None:
        """Enter the table with the store; nothing is read."""
        self.entered = weights.once("weight", lambda: self._enter(weights), "streamed rows")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """[...] int64 -> [..., H].

        Raises:
            UnsupportedError: as `embedding.cpu`, or the store is closed.
            IoError: a row cannot be read; the model stays usable.
        """
        rows = stream_rows(input, self.entered.handle, self.dtype)
        return rows if self.scale is None else rows * torch.tensor(self.scale, dtype=rows.dtype, device=rows.device)

    def lower(self, builder: Builder) -> Value:  # type: ignore[override]
        """The step's ids -> [T, H]; raises as `embedding.cpu`."""
        self.check_float32()
        return builder.rows(self.entered.handle, 1.0 if self.scale is None else self.scale)

    def held(self) -> tuple[Any, ...]:
        """Nothing: buffers belong to the store."""
        return ()

    @classmethod
    def memory(cls, context: OperatorContext, config: CpuLinearConfig) -> MemoryNeed:
        """Nothing but buffers for rows; the table stays in its file."""
        need = super().memory(context, config)
        layout = context.layouts["weight"]
        stream = StreamNeed(layout.stored_bytes, row_bytes=(layout.stored_bytes // max(1, layout.rows),))
        return MemoryNeed(0, need.format, need.kernel, stream)

    def extra_repr(self) -> str:
        """Sizes, as nn.Embedding prints them, and the format."""
        stored = self.entered.format if "entered" in vars(self) else "not loaded"
        return f"{self.num_embeddings}, {self.embedding_dim}, scale={self.scale}, {stored}"

    def _enter(self, weights: ModuleWeights) -> Entered:
        rows = weights.stored_rows("weight", 0, self.num_embeddings)
        if rows is None or rows.order is not None:
            raise UnsupportedError(NO_RECORD, self.path, "use embedding.cpu")
        handle = store_of(weights, self.path).add_table(self.path, rows.spans, shape_of(rows))
        return Entered(handle, rows.format)
