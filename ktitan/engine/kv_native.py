"""The KV pool in native memory: float32 on the CPU, kept as it is or rounded to a smaller format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from ktitan.context import PAGE_TOKENS, KVAllowance, KVLayerSpec, KVPool
from ktitan.engine.kv_refusals import (
    check_states,
    cropped_below_zero,
    named_twice,
    no_room,
    undeclared,
    unequal_lengths,
    unknown_sequence,
)
from ktitan.errors import KtitanError, UnsupportedError
from ktitan.kv_formats import AS_COMPUTED, KV_FORMATS, parse_kv
from ktitan.native.pool import NativePool, PoolLayer

__all__ = ["NativeKVPool"]

# KV_MOST_LAYERS of csrc/program/pool_store.h.
_MOST_LAYERS = 1 << 16
_CPU = torch.device("cpu")


class NativeKVPool(KVPool):
    """A pool whose pages native code reads and writes (csrc/program/pool.h).

    Any thread may call; who appends to, crops or frees a sequence is its only user at the time. Pages never move. What
    `gather_batch` and `pages` give are copies.

    Args:
        budget_bytes: bytes that the pages of all layers may take together, free ones included; None: no limit. Or who
            says how many at any time. As with `TorchKVPool`, a page is paid for in every layer declared so far.
        format: how pages hold numbers, of `ktitan.kv_formats.KV_FORMATS`.

    Attributes:
        native: the pages, for native calls.

    Raises:
        UnsupportedError: an unknown format.
        HardwareError: there is no native library.
    """

    def __init__(self, budget_bytes: int | KVAllowance | None = None, format: str = AS_COMPUTED) -> None:
        self.format = parse_kv(format)
        self.native = NativePool()
        self._allowance = budget_bytes if isinstance(budget_bytes, KVAllowance) else KVAllowance(budget_bytes)
        self._allowance.enter(self)
        self._specs: dict[int, KVLayerSpec] = {}
        self._known: set[int] = set()

    def __deepcopy__(self, memo: dict[int, Any]) -> NativeKVPool:
        clone = memo[id(self)] = type(self).__new__(type(self))
        clone.__dict__.update(self.__dict__)
        clone.native = self.native.copy()
        clone._specs, clone._known = dict(self._specs), set(self._known)
        self._allowance.enter(clone)
        return clone

    def __reduce__(self) -> Any:
        """Numbers by sequence and layer: a pool from a pickle shares no pages."""
        held = {
            sequence: {layer: self.gather(layer, sequence) for layer in self._specs if self.length(layer, sequence)}
            for sequence in sorted(self._known)
        }
        return _restored, (self._allowance, self.format, self._specs, held)

    @property
    def budget_bytes(self) -> int | None:
        """What the pool may take now."""
        return self._allowance.limit_bytes

    @property
    def is_exact(self) -> bool:
        """Whether pages hold float32."""
        return self.format == AS_COMPUTED

    def new_sequence(self) -> int:
        """The id of a new, empty sequence; ids are never used again."""
        return self._enter(self.native.new_sequence())

    def fork(self, sequence: int) -> int:
        """The id of a new sequence that shares all pages of `sequence`; either one copies a page before writing it.

        Raises:
            UnsupportedError: `sequence` is unknown.
        """
        self._find((sequence,))
        return self._enter(self.native.fork(sequence))

    def free(self, sequence: int) -> None:
        """Forget a sequence; pages that nobody else uses return to the pool.

        Raises:
            UnsupportedError: `sequence` is unknown.
        """
        self._find((sequence,))
        self.native.free(sequence)
        self._known.remove(sequence)

    def reserve(self, sequences: Sequence[int], tokens: Sequence[int]) -> None:
        """Get pages for the next `tokens[i]` tokens of `sequences[i]`; see `KVPool.reserve`.

        Layers that have not been declared yet are not counted.
        """
        self._find(sequences, are_distinct=True)
        with self._allowance.lock:
            if not self.native.reserve(sequences, tokens, self.budget_bytes):
                self._refuse()

    def append_packed(
        self, layer: int, sequences: Sequence[int], tokens: Sequence[int], keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Write the next tokens of one layer for several sequences; see `KVPool.append_packed`."""
        self._find(sequences, are_distinct=True)
        spec = self._specs.get(layer)
        check_states(layer, sum(tokens), keys, values, _is_right(spec, keys, values), spec)
        keys, values = keys.resolve_neg().contiguous(), values.resolve_neg().contiguous()
        with self._allowance.lock:
            if spec is None:
                self.declare(layer, KVLayerSpec.of(keys, values))
            try:
                places = keys.data_ptr(), values.data_ptr()
                if not self.native.append(layer, sequences, tokens, places, self.budget_bytes):
                    self._refuse()
            except KtitanError:
                if spec is None:
                    self.native.undeclare(layer)
                    del self._specs[layer]
                raise

    def gather_batch(self, layer: int, sequences: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """All tokens of one layer of B sequences: keys [B, S, Hk, Dk], values [B, S, Hv, Dv]; see `KVPool`.

        A copy, whose numbers lie head after head, [B, H, S, D], as attention wants them.
        """
        spec = self.spec(layer)
        lengths = {self.length(layer, sequence) for sequence in sequences}
        if len(lengths) != 1:
            raise unequal_lengths(layer, lengths)
        (length,) = lengths
        keys = torch.empty(len(sequences), spec.key_heads, length, spec.key_dim, dtype=spec.dtype)
        values = torch.empty(len(sequences), spec.value_heads, length, spec.value_dim, dtype=spec.dtype)
        self.native.gather(layer, sequences, length, keys.data_ptr(), values.data_ptr())
        return keys.transpose(1, 2), values.transpose(1, 2)

    def pages(self, layer: int, sequence: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The pages of one layer in order, each keys [n, Hk, Dk] and values [n, Hv, Dv] with n <= 64 (copies)."""
        for first in range(0, self.length(layer, sequence), PAGE_TOKENS):
            spec, count = self.spec(layer), min(PAGE_TOKENS, self.length(layer, sequence) - first)
            keys = torch.empty(count, spec.key_heads, spec.key_dim, dtype=spec.dtype)
            values = torch.empty(count, spec.value_heads, spec.value_dim, dtype=spec.dtype)
            self.native.read(layer, sequence, first, count, keys.data_ptr(), values.data_ptr())
            yield keys, values

    def length(self, layer: int, sequence: int) -> int:
        """S, the tokens that one layer holds of one sequence; 0 for a layer that has not been declared."""
        length = self.native.length(layer, sequence)
        if length < 0:
            raise unknown_sequence(sequence)
        return length

    def crop(self, sequence: int, length: int) -> None:
        """Keep the first `length` tokens in every layer; pages that become empty return to the pool.

        Raises:
            UnsupportedError: `length` is negative, or `sequence` is unknown.
        """
        self._find((sequence,))
        if length < 0:
            raise cropped_below_zero(length)
        self.native.crop(sequence, length)

    def table(self, sequence: int) -> tuple[int, ...]:
        """The page numbers of one sequence, in order; reserved pages come last."""
        table = self.native.table(sequence)
        if table is None:
            raise unknown_sequence(sequence)
        return table

    def layers(self) -> Sequence[int]:
        """The layers that have been declared, ascending."""
        return sorted(self._specs)

    def spec(self, layer: int) -> KVLayerSpec:
        """What a declared layer stores.

        Raises:
            UnsupportedError: the layer has not been declared.
        """
        spec = self._specs.get(layer)
        if spec is None:
            raise undeclared(layer)
        return spec

    @property
    def used_bytes(self) -> int:
        """Bytes of the pages in use, over all layers."""
        return self.native.counts().used_bytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all pages that have memory, free ones included: what the budget limits."""
        return self.native.counts().allocated_bytes

    @property
    def held_bytes(self) -> int:
        """What `trim` would leave: any free page goes back."""
        return self.used_bytes

    def trim(self) -> int:
        """Give the memory of all free pages back to the system; the bytes that this frees."""
        before = self.allocated_bytes
        return before - self.native.trim(0)

    def declare(self, layer: int, spec: KVLayerSpec) -> None:
        """Say what a layer stores before its first tokens: a program appends without asking. The format is the pool's.

        Raises:
            UnsupportedError: the pool cannot hold it, or holds something else in this layer.
            BudgetError: the pages in use do not fit in it.
        """
        spec = replace(spec, format=self.format)
        if layer in self._specs:
            if spec != self._specs[layer]:
                raise UnsupportedError(
                    f"{spec} does not fit the layer's {self._specs[layer]}",
                    f"layer {layer}",
                    "give each model a pool of its own",
                )
            return
        _check_layer(layer, spec)
        what = PoolLayer(
            spec.key_heads, spec.key_dim, spec.value_heads, spec.value_dim, list(KV_FORMATS).index(spec.format)
        )
        with self._allowance.lock:
            if not self.native.declare(layer, what, self.budget_bytes):
                counts = self.native.counts()
                self._refuse(f"{counts.pages} pages of layer {layer}")
            self._specs[layer] = spec

    def _enter(self, sequence: int) -> int:
        self._known.add(sequence)
        return sequence

    def _find(self, sequences: Sequence[int], are_distinct: bool = False) -> None:
        if are_distinct and len(set(sequences)) != len(sequences):
            raise named_twice(sequences)
        for sequence in sequences:
            if sequence not in self._known:
                raise unknown_sequence(sequence)

    def _refuse(self, purpose: str = "") -> None:
        """Raise for what the last call did not get."""
        counts, budget = self.native.counts(), self.budget_bytes or 0
        needed = counts.missing_bytes + budget - counts.allocated_bytes
        if not purpose:
            purpose = f"{needed // max(counts.page_bytes, 1)} pages in {len(self._specs)} layers"
        raise no_room(needed, purpose, budget, counts.allocated_bytes)


def _restored(
    allowance: KVAllowance,
    format: str,
    specs: dict[int, KVLayerSpec],
    held: dict[int, dict[int, tuple[torch.Tensor, torch.Tensor]]],
) -> NativeKVPool:
    """A pool from its pickle: the same ids."""
    pool = NativeKVPool(allowance, format)
    for layer, spec in specs.items():
        pool.declare(layer, spec)
    for number in range(max(held, default=-1) + 1):
        sequence = pool.new_sequence()
        for layer, (keys, values) in held.get(number, {}).items():
            pool.append(layer, sequence, keys, values)
        if number not in held:
            pool.free(sequence)
    return pool


def _is_right(spec: KVLayerSpec | None, keys: torch.Tensor, values: torch.Tensor) -> bool:
    """Whether the tensors are what a layer, or (None) any layer, can store."""
    if keys.dtype is not values.dtype or keys.device != values.device:
        return False
    if spec is None:
        return True  # `declare` looks at the rest
    return (
        keys.dtype is torch.float32
        and keys.is_cpu
        and keys.shape[1:] == (spec.key_heads, spec.key_dim)
        and values.shape[1:] == (spec.value_heads, spec.value_dim)
    )


def _check_layer(layer: int, spec: KVLayerSpec) -> None:
    place = f"layer {layer}"
    if spec.dtype is not torch.float32 or spec.device != _CPU:
        raise UnsupportedError(
            f"the native KV pool takes float32 on the CPU, not {spec.dtype} on {spec.device}",
            place,
            "give the cache a TorchKVPool",
        )
    if not 0 <= layer < _MOST_LAYERS or min(spec.key_heads, spec.key_dim, spec.value_heads, spec.value_dim) < 1:
        raise UnsupportedError(
            f"the native KV pool has no room for {spec}", place, f"number layers from 0 to {_MOST_LAYERS - 1}"
        )
    block = KV_FORMATS[spec.format].block
    if spec.key_dim % block or spec.value_dim % block:
        raise UnsupportedError(
            f"{spec.format} stores blocks of {block} numbers, and heads are {spec.key_dim} and {spec.value_dim} wide",
            place,
            "use another format of the KV cache (kv=, --kv)",
        )
