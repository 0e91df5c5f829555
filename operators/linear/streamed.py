"""`linear.streamed`: the product of `linear.cpu` with weights that stay in files and pass through a cache in RAM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ktitan.errors import UnsupportedError
from ktitan.native.streams import stream_linear
from ktitan.operator import MemoryNeed, ModuleWeights, OperatorContext, StreamNeed
from ktitan.operators.linear.cpu import CpuLinear, CpuLinearConfig
from ktitan.operators.streamed import NO_RECORD, Entered, no_library, shape_of, store_of, whole_record
from ktitan.registry import register_operator

if TYPE_CHECKING:
    from ktitan.lowering import Builder, Value

__all__ = ["StreamedLinear"]


@register_operator("linear.streamed")
class StreamedLinear(CpuLinear):
    """y = x W^T + b; x [..., H] -> y [..., N] in x's dtype, with the bits of `linear.cpu`.

    W [N, H] is read when it is needed, ahead of its turn where there is room. Rows that are stored in another order are
    multiplied as they are stored; the order of the outputs is changed instead.
    """

    homes = ("nvme",)
    streams = True
    order: torch.Tensor | None

    @classmethod
    def supports(cls, context: OperatorContext, config: CpuLinearConfig) -> str | None:
        """What `linear.cpu` supports, where the weight is one piece of a file and there is a native library."""
        reason = super().supports(context, config) or no_library("linear.cpu")
        if reason is None and whole_record(context.stored_rows, context.path, "weight", _rows(context)) is None:
            reason = NO_RECORD
        return reason

    def load(self, weights: ModuleWeights) -> None:
        """Enter the weight with the store; only `bias` is read."""
        self.entered = weights.once("weight", lambda: self._enter(weights), "streamed")
        order = self.entered.order
        self.order = None if order is None else torch.tensor(order)
        self.bias = self._stored_bias(weights) if self.has_bias else None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """[..., H] -> [..., N].

        Raises:
            UnsupportedError: as `linear.cpu`, or the store is closed.
            IoError: the weight cannot be read; the model stays usable.
        """
        out = stream_linear(input, self.entered.handle, self.bias, self.activations)
        return out if self.order is None else out.index_select(-1, self.order)

    def lower(self, builder: Builder, x: Value) -> Value:  # type: ignore[override]
        """[T, H] -> [T, N]."""
        return builder.linear(x, self.entered.handle, self.bias, self.activations, self.order)

    def held(self) -> tuple[Any, ...]:
        """Nothing: what is in the cache belongs to the store."""
        return ()

    @classmethod
    def memory(cls, context: OperatorContext, config: CpuLinearConfig) -> MemoryNeed:
        """The bias in float32; the weight stays in its file."""
        need = super().memory(context, config)
        stored = context.layouts["weight"].stored_bytes
        found = whole_record(context.stored_rows, context.path, "weight", _rows(context))
        slots = () if found is None else (found[1].slot_bytes,)
        stream = StreamNeed(stored, dense_slots=slots)
        return MemoryNeed(need.resident_bytes - stored, need.format, need.kernel, stream)

    def extra_repr(self) -> str:
        """Sizes, as nn.Linear prints them, and the format."""
        stored = self.entered.format if "entered" in vars(self) else "not loaded"
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.has_bias}, {stored}"

    def _enter(self, weights: ModuleWeights) -> Entered:
        found = whole_record(weights.stored_rows, self.path, "weight", self.out_features)
        if found is None:
            raise UnsupportedError(NO_RECORD, self.path, "use linear.cpu")
        rows, record = found
        handle = store_of(weights, self.path).add_matrix(self.path, record, shape_of(rows))
        return Entered(handle, rows.format, rows.order)

    def _stored_bias(self, weights: ModuleWeights) -> nn.Parameter:
        """The bias in the order of the stored rows, since it is added before the sums are rounded."""
        bias = weights.tensor("bias", torch.float32, "cpu")
        if self.order is not None:
            stored = torch.empty_like(bias)
            stored[self.order] = bias
            bias = stored
        return nn.Parameter(bias, requires_grad=False)


def _rows(context: OperatorContext) -> int:
    return context.layouts["weight"].rows
