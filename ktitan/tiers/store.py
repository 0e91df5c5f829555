"""The store of one model: what is streamed, the memory for it, and the counters of what happened.

Operators enter their records while they load; then the store is opened with its share of the budget, and from then on
the native library decides what is where (csrc/tiers).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ktitan.errors import UnsupportedError
from ktitan.formats import Span
from ktitan.native import ExpertShape, MatrixShape, native_reason
from ktitan.native.predict import Predictor
from ktitan.native.profile import record_tokens, seed_records, warm_records
from ktitan.native.store import NativeRecord, NativeStore, StoreSizes
from ktitan.native.streams import StreamBank, StreamMatrix, StreamTable
from ktitan.tiers.options import AUTOMATIC, HALF_LIFE_TOKENS, POLICIES, CacheOptions
from ktitan.tiers.pools import CacheNeed, Pooled, Shares, cache_need, least_again, share_out
from ktitan.tiers.profile import Profile, digest_of, start_of
from ktitan.tiers.record import Record

__all__ = ["CacheNeed", "ExpertShape", "MatrixShape", "StoreLimits", "TierStore"]

# Records read between two looks at the time, at the start.
_WARMED_AT_ONCE = 256


@dataclass(frozen=True)
class StoreLimits:
    """How a store may read and hold.

    Attributes:
        cache_bytes: of RAM, for records and buffers together.
        io: "auto", "io_uring" or "threads".
        direct: past the page cache, where the file system can.
        depth: reads in flight on a drive; 0: probed.
        options: who stays, and what is read early.
        chunk_tokens: most tokens for which experts are read once; a longer prompt is cut.
    """

    cache_bytes: int
    io: str = "auto"
    direct: bool = True
    depth: int = 0
    options: CacheOptions = AUTOMATIC
    chunk_tokens: int = 512


@dataclass(frozen=True)
class _Table:
    stream: StreamTable
    spans: tuple[Span, ...]


class TierStore:
    """Owner of what is streamed of one model.

    Attributes:
        banks: the layers with experts, by path, in the order of the model.
    """

    def __init__(self) -> None:
        self._native = NativeStore()
        self._records: list[Record] = []
        self._layers: list[int] = []  # of each record; -1: dense
        self._tables: list[_Table] = []
        self.banks: dict[str, StreamBank] = {}
        self._shares: Shares | None = None
        self._options = AUTOMATIC
        self._opened_at = 0.0  # by time.monotonic

    @property
    def native(self) -> NativeStore:
        """The native store, for programs."""
        return self._native

    @property
    def need(self) -> CacheNeed:
        """What the records entered so far need."""
        pooled, dense, rows = self._sizes()
        return cache_need([record.slot_bytes for record in pooled], dense, rows)

    def add_experts(self, path: str, records: Sequence[Record], shape: ExpertShape) -> StreamBank:
        """Enter the experts of a layer; record e is expert e, with places (gate, up, down), or (up, down) without gate.

        Returns:
            What `ktitan.native.stream_experts` takes.
        """
        first = len(self._records)
        self._records += records
        self._layers += [max(self._layers, default=-1) + 1] * len(records)
        places = [record.places if shape.gate is not None else (0, *record.places) for record in records]
        bank = StreamBank(self._native, first, [(gate, up, down) for gate, up, down in places], shape)
        self.banks[path] = bank
        return bank

    def add_matrix(self, path: str, record: Record, shape: MatrixShape) -> StreamMatrix:
        """Enter the weight of a dense layer, in the order of use; the record has one part.

        Returns:
            What `ktitan.native.stream_linear` takes.
        """
        self._records.append(record)
        self._layers.append(-1)
        return StreamMatrix(self._native, len(self._records) - 1, record.places[0], shape)

    def add_table(self, path: str, spans: Sequence[Span], shape: MatrixShape) -> StreamTable:
        """Enter a table that is read row by row; no row lies in two spans.

        Returns:
            What `ktitan.native.stream_rows` takes.
        """
        table = StreamTable(self._native, shape)
        self._tables.append(_Table(table, tuple(spans)))
        return table

    def open(self, limits: StoreLimits, stamps: Mapping[str, Any]) -> None:
        """Take memory and open the files.

        Args:
            limits: how much, and how.
            stamps: `FileStamp` of every file, by path.

        Raises:
            BudgetError: the cache is too small for the records, or there is no memory for it.
            IoError: a file cannot be opened, or is not the one whose header was read.
            UnsupportedError: there is no native library, or `limits.io` is "io_uring" and that is refused.
        """
        reason = native_reason()
        if reason is not None:
            raise UnsupportedError(
                f"weights cannot be streamed: the native library is {reason}",
                "store",
                "install ktitan with a C++ compiler at hand, or use operators that hold their weights",
            )
        options = limits.options
        shares = share_out(limits.cache_bytes, *self._sizes(), options)
        files: dict[str, int] = {}
        spans = [one.span for record in self._records for one in record.extents]
        for span in [*spans, *(span for table in self._tables for span in table.spans)]:
            files.setdefault(span.file, len(files))
        pools, domains = iter(shares.pool_of), iter(shares.domain_of)
        records = [
            NativeRecord(
                record.name,
                tuple((files[one.span.file], one.span.offset, one.span.nbytes, one.at) for one in record.extents),
                record.slot_bytes,
                next(pools) if layer >= 0 else -1,
                next(domains) if layer >= 0 else -1,
                layer,
            )
            for record, layer in zip(self._records, self._layers, strict=True)
        ]
        self._native.open(
            records,
            _store_sizes(shares),
            shares.row_bytes,
            mode=limits.io,
            direct=limits.direct,
            depth=limits.depth,
            policy=-1 if options.policy == "auto" else POLICIES.index(options.policy),
            prefetch=options.prefetch,
            chunk_tokens=limits.chunk_tokens,
            growth=2 ** (1 / HALF_LIFE_TOKENS),
        )
        try:
            for path in files:
                self._native.add_file(path, stamps.get(path))
            self._native.tell_fallbacks(limits.io, limits.direct)
        except BaseException:
            self._native.close()
            raise
        for table in self._tables:
            table.stream.place(_placed(table.spans, files))
        self._shares, self._options, self._opened_at = shares, options, time.monotonic()

    @property
    def least_bytes(self) -> int:
        """The smallest cache that `resize` takes; before `open`, that it takes."""
        return self.need.least_bytes if self._shares is None else least_again(*self._sizes(), self._shares)

    def resize(self, cache_bytes: int) -> None:
        """Share other bytes out, while calls of other threads wait. What is to stay is kept, memory goes back at once.

        Args:
            cache_bytes: of RAM, for records and buffers together.

        Raises:
            BudgetError: it is too small, or there is not so much memory; nothing has changed.
            UnsupportedError: the store is not open.
        """
        self._native.check_open()
        shares = share_out(cache_bytes, *self._sizes(), self._options, self._shares)
        self._native.resize(_store_sizes(shares))
        self._shares = shares

    def stats(self) -> dict[str, Any]:
        """Counters since the store was opened, by the names of kt_store_counters and kt_io_counters."""
        return self._native.counters()

    def start_from(self, profile: Profile, where: str, progress: Callable[[int, int], None] | None = None) -> None:
        """Begin with the experts that earlier sessions chose.

        Args:
            profile: of this model.
            where: where it comes from, for messages.
            progress: called with (bytes read, bytes in all).

        Raises:
            IoError: a record cannot be read.
            UnsupportedError: the profile is another model's, or the store is not open.
        """
        numbers = self._expert_numbers()
        profile.check_like(self.profile(), where)
        if self._shares is None or not numbers:
            return
        start = start_of(profile.tokens, self._shares.domain_of, self._shares.domain_slots)
        seed_records(self._native, numbers, start.seeds, start.pinned)
        reads = [numbers[record] for record in start.reads]
        total, done = sum(self._records[number].slot_bytes for number in reads), 0
        for first in range(0, len(reads), _WARMED_AT_ONCE):
            some = reads[first : first + _WARMED_AT_ONCE]
            warm_records(self._native, some)
            done += sum(self._records[number].slot_bytes for number in some)
            if progress is not None:
                progress(done, total)

    def profile(self) -> Profile:
        """What was chosen since the store was opened, as a session of its own.

        Raises:
            UnsupportedError: the store is not open.
        """
        numbers = self._expert_numbers()
        tokens = record_tokens(self._native, len(self._records))[numbers].astype(np.float64)
        names = [self._records[number].name for number in numbers]
        return Profile(tokens, digest_of(names), max(self._layers, default=-1) + 1, 1)

    @property
    def open_seconds(self) -> float:
        """Wall time since the store was opened."""
        return time.monotonic() - self._opened_at

    def foresee(self, predictor: Predictor, hidden: torch.Tensor) -> None:
        """Guess what the layer of `predictor` will choose from `hidden` [T, H], and read early what may be."""
        self._native.foresee(predictor, hidden)

    def foretell(self, records: Sequence[int]) -> None:
        """The same for records that are known to be asked for, the first ones first."""
        self._native.foretell(records)

    def drop(self) -> None:
        """Forget what is resident of the experts."""
        self._native.drop()

    def close(self) -> None:
        """Give everything back; later calls of operators raise UnsupportedError. Closing twice does nothing."""
        self._native.close()

    def _expert_numbers(self) -> list[int]:
        return [number for number, layer in enumerate(self._layers) if layer >= 0]

    def _sizes(self) -> tuple[list[Pooled], list[int], list[int]]:
        """The pooled records, slot bytes of the dense ones, and row bytes of the tables."""
        pairs = list(zip(self._records, self._layers, strict=True))
        pooled = [Pooled(record.slot_bytes, layer) for record, layer in pairs if layer >= 0]
        dense = [record.slot_bytes for record, layer in pairs if layer < 0]
        return pooled, dense, [table.stream.shape.row_bytes for table in self._tables]


def _store_sizes(shares: Shares) -> StoreSizes:
    pools = tuple((pool.slot_bytes, pool.slots, pool.spares) for pool in shares.pools)
    return StoreSizes(pools, shares.domain_slots, shares.cycle_bytes)


def _placed(spans: Sequence[Span], files: Mapping[str, int]) -> list[tuple[int, int, int, int]]:
    """(file number, offset, bytes, position in the table) of each span."""
    placed, at = [], 0
    for span in spans:
        placed.append((files[span.file], span.offset, span.nbytes, at))
        at += span.nbytes
    return placed
