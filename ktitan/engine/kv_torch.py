"""The plain KV pool: pages in torch tensors, on any device."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ktitan.context import PAGE_TOKENS, KVAllowance, KVLayerSpec, KVPool
from ktitan.engine.kv_pages import PageLedger
from ktitan.engine.kv_refusals import (
    check_states,
    cropped_below_zero,
    named_twice,
    no_room,
    undeclared,
    unequal_lengths,
    unknown_sequence,
)
from ktitan.engine.kv_store import PageStore, WritePart
from ktitan.errors import BudgetError

__all__ = ["TorchKVPool"]

# Tensors [n * 64, heads, dim] that are to be joined.
_Parts = list[torch.Tensor]

# Pages that a growing pool gets beyond the need, so that a sequence's pages stay neighbours: 1,024 to 16,384 tokens.
_AHEAD_MIN_PAGES = 16
_AHEAD_MAX_PAGES = 256


@dataclass
class _Sequence:
    """Pages in order, and the tokens that each layer holds."""

    table: list[int] = field(default_factory=list)
    lengths: dict[int, int] = field(default_factory=dict)

    @property
    def longest(self) -> int:
        return max(self.lengths.values(), default=0)

    @property
    def shortest(self) -> int:
        return min(self.lengths.values(), default=0)


class TorchKVPool(KVPool):
    """A pool whose pages are rows of torch tensors.

    It is not thread-safe: one engine owns it. Memory grows in chunks that never move. Pages of freed sequences are
    used again first; `trim` gives memory back.

    Args:
        budget_bytes: bytes that the tensors of all layers may take together, free pages included; None: no limit. Or
            who says how many at any time.
            A page is paid for in every layer declared so far, so a step that does not fit is refused in its first
            layer, once each layer has been seen.
    """

    def __init__(self, budget_bytes: int | KVAllowance | None = None) -> None:
        self._allowance = budget_bytes if isinstance(budget_bytes, KVAllowance) else KVAllowance(budget_bytes)
        self._allowance.enter(self)
        self._ledger = PageLedger()
        self._store = PageStore()
        self._sequences: dict[int, _Sequence] = {}
        self._next_id = 0
        # Raised when any table or reference count changes: the age of the two plans that the layers of a step share.
        self._version = 0
        self._write_plan: tuple[Any, list[WritePart]] | None = None
        self._read_plan: tuple[Any, dict[int, tuple[_Parts, _Parts]]] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> TorchKVPool:
        clone = memo[id(self)] = type(self).__new__(type(self))
        # Copied under inference mode, the tensors could not be written to outside of it.
        with torch.inference_mode(False):
            clone.__dict__.update(copy.deepcopy(self.__dict__, memo))
        self._allowance.enter(clone)
        return clone

    @property
    def budget_bytes(self) -> int | None:
        """What the pool may take now."""
        return self._allowance.limit_bytes

    def new_sequence(self) -> int:
        """The id of a new, empty sequence; ids are never used again."""
        return self._enter(_Sequence())

    def fork(self, sequence: int) -> int:
        """The id of a new sequence that shares all pages of `sequence`; either one copies a page before writing it.

        Raises:
            UnsupportedError: `sequence` is unknown.
        """
        source = self._find(sequence)
        self._ledger.share(source.table)
        self._version += 1
        return self._enter(_Sequence(list(source.table), dict(source.lengths)))

    def free(self, sequence: int) -> None:
        """Forget a sequence; pages that nobody else uses return to the pool.

        Raises:
            UnsupportedError: `sequence` is unknown.
        """
        state = self._find(sequence)
        # In this order, here and below, Ctrl-C in between loses pages, but frees none twice.
        del self._sequences[sequence]
        self._ledger.release(state.table)
        self._version += 1

    def reserve(self, sequences: Sequence[int], tokens: Sequence[int]) -> None:
        """Get pages for the next `tokens[i]` tokens of `sequences[i]`; see `KVPool.reserve`.

        Layers that have not been declared yet are not counted.
        """
        states = self._distinct(sequences)
        ends = [state.longest + count for state, count in zip(states, tokens, strict=True)]
        with self._allowance.lock:
            self._claim(states, [state.shortest for state in states], ends)

    def append_packed(
        self, layer: int, sequences: Sequence[int], tokens: Sequence[int], keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Write the next tokens of one layer for several sequences; see `KVPool.append_packed`."""
        states = self._distinct(sequences)
        is_new = self._check(layer, sum(tokens), keys, values)
        if is_new:
            self._declare(layer, keys, values)
        starts = tuple(state.lengths.get(layer, 0) for state in states)
        try:
            parts = self._plan_write(tuple(sequences), states, starts, tuple(tokens), keys.device)
        except BudgetError:
            if is_new:
                del self._store.layers[layer]
            raise
        self._store.layers[layer].write(parts, keys, values)
        for state, start, count in zip(states, starts, tokens, strict=True):
            state.lengths[layer] = start + count

    def gather_batch(self, layer: int, sequences: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """All tokens of one layer of B sequences: keys [B, S, Hk, Dk], values [B, S, Hv, Dv]; see `KVPool`.

        A view where all pages are neighbours, as with a single sequence that nothing disturbed; one copy otherwise.
        """
        spec = self.spec(layer)
        states = [self._find(sequence) for sequence in sequences]
        lengths = {state.lengths.get(layer, 0) for state in states}
        if len(lengths) != 1:
            raise unequal_lengths(layer, lengths)
        (length,) = lengths
        if length == 0:
            empty = torch.empty(len(states), 0, spec.key_heads, spec.key_dim, dtype=spec.dtype, device=spec.device)
            return empty, empty.new_empty(len(states), 0, spec.value_heads, spec.value_dim)
        keys, values = self._plan_read(layer, tuple(sequences), states, _pages(length))
        return _join(keys, len(states), length), _join(values, len(states), length)

    def pages(self, layer: int, sequence: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The pages of one layer in order, each keys [n, Hk, Dk] and values [n, Hv, Dv] with n <= 64 (views)."""
        state = self._find(sequence)
        length = state.lengths.get(layer, 0)
        for index, page in enumerate(state.table[: _pages(length)]):
            yield self._store.page(layer, page, min(PAGE_TOKENS, length - index * PAGE_TOKENS))

    def length(self, layer: int, sequence: int) -> int:
        """S, the tokens that one layer holds of one sequence; 0 for a layer that has not been declared."""
        return self._find(sequence).lengths.get(layer, 0)

    def crop(self, sequence: int, length: int) -> None:
        """Keep the first `length` tokens in every layer; pages that become empty return to the pool.

        Raises:
            UnsupportedError: `length` is negative, or `sequence` is unknown.
        """
        state = self._find(sequence)
        if length < 0:
            raise cropped_below_zero(length)
        for layer, tokens in state.lengths.items():
            state.lengths[layer] = min(tokens, length)
        kept = _pages(state.longest)
        dropped = state.table[kept:]
        del state.table[kept:]
        self._ledger.release(dropped)
        self._version += 1

    def table(self, sequence: int) -> tuple[int, ...]:
        """The page numbers of one sequence, in order; reserved pages come last."""
        return tuple(self._find(sequence).table)

    def layers(self) -> Sequence[int]:
        """The layers that have been declared, ascending."""
        return sorted(self._store.layers)

    def spec(self, layer: int) -> KVLayerSpec:
        """What a declared layer stores.

        Raises:
            UnsupportedError: the layer has not been declared.
        """
        store = self._store.layers.get(layer)
        if store is None:
            raise undeclared(layer)
        return store.spec

    @property
    def used_bytes(self) -> int:
        """Bytes of the pages in use, over all layers."""
        return self._ledger.used * self._store.page_bytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all tensors, those of free pages included: what the budget limits."""
        return self._store.pages * self._store.page_bytes

    @property
    def held_bytes(self) -> int:
        """What `trim` would leave."""
        return self._ledger.needed * self._store.page_bytes

    def trim(self) -> int:
        """Give the free pages behind the last used one back to the allocator; the bytes that this frees."""
        before = self.allocated_bytes
        self._store.shrink(self._ledger.drop_free_tail())
        self._version += 1
        self._write_plan = self._read_plan = None
        return before - self.allocated_bytes

    def _enter(self, state: _Sequence) -> int:
        sequence, self._next_id = self._next_id, self._next_id + 1
        self._sequences[sequence] = state
        return sequence

    def _find(self, sequence: int) -> _Sequence:
        state = self._sequences.get(sequence)
        if state is None:
            raise unknown_sequence(sequence)
        return state

    def _distinct(self, sequences: Sequence[int]) -> list[_Sequence]:
        if len(set(sequences)) != len(sequences):
            raise named_twice(sequences)
        return [self._find(sequence) for sequence in sequences]

    def _check(self, layer: int, tokens: int, keys: torch.Tensor, values: torch.Tensor) -> bool:
        """Whether the layer is new; raises when the tensors are not what it stores."""
        store = self._store.layers.get(layer)
        if store is None:
            is_right = (values.dtype, values.device) == (keys.dtype, keys.device)
        else:
            is_right = store.takes(keys, values)
        check_states(layer, tokens, keys, values, is_right, None if store is None else store.spec)
        return store is None

    def _declare(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Make a new layer's storage; raises BudgetError when the pages in use do not fit in it."""
        spec = KVLayerSpec.of(keys, values)
        with self._allowance.lock:
            needed = self._store.pages * PAGE_TOKENS * spec.token_bytes
            if self.budget_bytes is not None and self.allocated_bytes + needed > self.budget_bytes:
                self.trim()
                needed = self._store.pages * PAGE_TOKENS * spec.token_bytes
                self._afford(needed, f"{self._store.pages} pages of layer {layer}")
            self._store.declare(layer, spec)

    def _plan_write(
        self,
        sequences: tuple[int, ...],
        states: list[_Sequence],
        starts: tuple[int, ...],
        tokens: tuple[int, ...],
        device: torch.device,
    ) -> list[WritePart]:
        """Get the pages that an append needs and say where its tokens go: once for all layers of a step."""
        key = (sequences, starts, tokens, device)
        if self._write_plan is not None and self._write_plan[0] == (self._version, *key):
            return self._write_plan[1]
        with self._allowance.lock:
            self._claim(states, starts, [start + count for start, count in zip(starts, tokens, strict=True)])
        parts = self._store.write_parts([state.table for state in states], starts, tokens, device)
        self._write_plan = ((self._version, *key), parts)
        return parts

    def _plan_read(
        self, layer: int, sequences: tuple[int, ...], states: list[_Sequence], pages: int
    ) -> tuple[_Parts, _Parts]:
        """Views that make up the first `pages` pages of each sequence: kept until a table changes."""
        key = (self._version, sequences, pages)
        if self._read_plan is None or self._read_plan[0] != key:
            self._read_plan = (key, {})
        known = self._read_plan[1]
        if layer not in known:
            known[layer] = self._store.views(layer, [page for state in states for page in state.table[:pages]])
        return known[layer]

    def _claim(self, states: Sequence[_Sequence], starts: Sequence[int], ends: Sequence[int]) -> None:
        """Make positions `starts[i]` to `ends[i]` - 1 of each sequence writable: own pages, enough of them."""
        if self.budget_bytes is not None and self.allocated_bytes > self.budget_bytes:
            self.trim()
        missing = 0
        shared: list[tuple[_Sequence, int]] = []
        for state, start, end in zip(states, starts, ends, strict=True):
            missing += max(0, _pages(end) - len(state.table))
            written = range(start // PAGE_TOKENS, min(_pages(end), len(state.table)) if end > start else 0)
            shared += [(state, index) for index in written if self._ledger.references(state.table[index]) > 1]
        # Of all users of a page the last one to write keeps it.
        writers = Counter(state.table[index] for state, index in shared)
        copies = sum(min(count, self._ledger.references(page) - 1) for page, count in writers.items())
        if missing + copies == 0:
            return
        self._provide(missing + copies)
        self._version += 1
        for state, index in shared:
            self._make_own(state, index)
        for state, end in zip(states, ends, strict=True):
            while len(state.table) < _pages(end):
                state.table.append(self._ledger.take(state.table[-1] if state.table else None))

    def _make_own(self, state: _Sequence, index: int) -> None:
        """Replace a page that others use, too, by a copy."""
        page = state.table[index]
        if self._ledger.references(page) > 1:
            own = self._ledger.take(page)
            self._store.copy_page(page, own)
            state.table[index] = own
            self._ledger.release((page,))

    def _provide(self, pages: int) -> None:
        """See to it that `pages` pages are free; raises BudgetError when they cannot be."""
        missing = pages - self._ledger.free
        if missing <= 0:
            return
        page_bytes = self._store.page_bytes
        self._afford(missing * page_bytes, f"{missing} pages in {len(self._store.layers)} layers")
        ahead = min(max(self._store.pages // 2, _AHEAD_MIN_PAGES), _AHEAD_MAX_PAGES)
        if self.budget_bytes is not None and page_bytes:
            ahead = min(ahead, (self.budget_bytes - self.allocated_bytes) // page_bytes - missing)
        self._store.grow(missing + ahead)
        self._ledger.extend(missing + ahead)

    def _afford(self, needed_bytes: int, purpose: str) -> None:
        if self.budget_bytes is None or self.allocated_bytes + needed_bytes <= self.budget_bytes:
            return
        raise no_room(needed_bytes, purpose, self.budget_bytes, self.allocated_bytes)


def _pages(tokens: int) -> int:
    """Pages that hold `tokens` tokens."""
    return -(-tokens // PAGE_TOKENS)


def _join(parts: _Parts, batch: int, length: int) -> torch.Tensor:
    """[B, S, heads, dim] from views that hold equally many whole pages of each of B sequences."""
    joined = parts[0] if len(parts) == 1 else torch.cat(parts)
    rows, heads, dim = joined.shape
    token = heads * dim
    # One call where a view and a slice would be two: it is made twice per layer and step.
    return joined.as_strided((batch, length, heads, dim), (rows // batch * token, token, dim, 1))
