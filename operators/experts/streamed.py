"""`experts.streamed`: the routed experts of `experts.cpu` with weights that stay in files, an expert a record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ktitan.errors import UnsupportedError
from ktitan.formats import StoredRows
from ktitan.lowering import Routed
from ktitan.native.streams import stream_experts
from ktitan.operator import MemoryNeed, ModuleWeights, OperatorContext, StreamNeed
from ktitan.operators.experts.cpu import CpuExperts, CpuExpertsConfig, expert_biases, first_rows, sizes_of
from ktitan.operators.experts.torch import ExpertFlags, read_flags
from ktitan.operators.streamed import NO_RECORD, Entered, Rows, no_library, shape_of, store_of
from ktitan.registry import register_operator
from ktitan.tiers.record import Record, lay_out
from ktitan.tiers.store import ExpertShape

if TYPE_CHECKING:
    from ktitan.lowering import Builder, Value

__all__ = ["StreamedExperts"]


@dataclass(frozen=True)
class _Layer:
    """The records of a layer and the matrices of its first expert: (gate,) up and down."""

    records: tuple[Record, ...]
    matrices: tuple[StoredRows, ...]


@register_operator("experts.streamed")
class StreamedExperts(CpuExperts):
    """sum_k w_k * down(act(gate(x)) * up(x)) over the chosen experts of each token, with the bits of `experts.cpu`.

    forward(hidden [T, H], top_k_index [T, K] int64, top_k_weights [T, K]) -> [T, H]. Experts are read when a router
    chooses them and stay in RAM while the store has room.
    """

    homes = ("nvme",)
    streams = True
    biases: Sequence[torch.Tensor] = ()

    @classmethod
    def supports(cls, context: OperatorContext, config: CpuExpertsConfig) -> str | None:
        """What `experts.cpu` supports, where each matrix of an expert is one piece of a file and there is a native
        library.
        """
        reason = super().supports(context, config) or no_library("experts.cpu")
        if reason is None and _layer_of(context) is None:
            reason = NO_RECORD
        return reason

    def load(self, weights: ModuleWeights) -> None:
        """Enter the experts with the store; only biases are read, as float32."""
        self.entered, self.biases = weights.once(self.flags.first, lambda: self._enter(weights), "streamed")

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """[T, H], [T, K], [T, K] -> [T, H].

        Raises:
            UnsupportedError: as `experts.cpu`, or the store is closed.
            IoError: an expert cannot be read; the model stays usable.
        """
        return stream_experts(hidden_states, top_k_index, top_k_weights, self.entered.handle, self.activations)

    def lower(self, builder: Builder, x: Value, index: Value, weights: Value) -> Value:  # type: ignore[override]
        """[T, H], [T, K], [T, K] -> [T, H]."""
        return builder.experts(x, Routed(index, weights, index.width), self.entered.handle, self.activations)

    def held(self) -> tuple[Any, ...]:
        """Biases; what is in the cache belongs to the store."""
        return tuple(self.biases)

    @classmethod
    def memory(cls, context: OperatorContext, config: CpuExpertsConfig) -> MemoryNeed:
        """Biases in float32; the matrices stay in their files."""
        need, layer = super().memory(context, config), _layer_of(context)
        flags = read_flags(context.module)
        names = () if isinstance(flags, str) else (flags.first, "down_proj")
        stored = sum(context.layouts[name].stored_bytes for name in names)
        stream = StreamNeed(stored, tuple(record.slot_bytes for record in layer.records) if layer else ())
        return MemoryNeed(need.resident_bytes - stored, need.format, need.kernel, stream)

    def extra_repr(self) -> str:
        """Sizes and formats."""
        stored = f", {self.entered.format}" if "entered" in vars(self) else ""
        return f"experts={self.flags.experts}, hidden={self.hidden}, inner={self.inner}, {self.activation}{stored}"

    def _enter(self, weights: ModuleWeights) -> tuple[Entered, tuple[torch.Tensor, ...]]:
        layer = _layer(weights.stored_rows, self.path, self.flags, (self.hidden, self.inner))
        if layer is None:
            raise UnsupportedError(NO_RECORD, self.path, "use experts.cpu")
        *gate, up, down = (shape_of(matrix) for matrix in layer.matrices)
        biases = {name: bias.detach() for name, bias in expert_biases(weights, self.flags, self.inner).items()}
        shape = ExpertShape(self.flags.experts, gate[0] if gate else None, up, down, self.activation, **biases)
        handle = store_of(weights, self.path).add_experts(self.path, layer.records, shape)
        return Entered(handle, f"{up.format}, {down.format}"), tuple(biases.values())


def _layer_of(context: OperatorContext) -> _Layer | None:
    flags = read_flags(context.module)
    if isinstance(flags, str):
        return None
    return _layer(context.stored_rows, context.path, flags, sizes_of(context.module, flags))


def _layer(rows: Rows, path: str, flags: ExpertFlags, sizes: tuple[int, int]) -> _Layer | None:
    """The records of E experts of sizes (H, I), or None where rows are torn apart or in another order."""
    hidden, inner = sizes
    wanted = [*((flags.first, first, inner) for first in first_rows(flags, inner)), ("down_proj", 0, hidden)]
    records: list[Record] = []
    matrices: tuple[StoredRows, ...] = ()
    for expert in range(flags.experts):
        found = [rows(name, first, count, expert) for name, first, count in wanted]
        parts = tuple(one for one in found if one is not None and one.order is None)
        if len(parts) < len(wanted):
            return None
        record = lay_out(f"{path}[{expert}]", [part.spans for part in parts])
        if record is None:
            return None
        records.append(record)
        matrices = matrices or parts
    return _Layer(tuple(records), matrices)
