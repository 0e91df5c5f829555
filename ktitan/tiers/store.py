"""The store of one model: what is streamed, the memory for it, and the counters of what happened.

Operators enter their records while they load; then the store is opened with its share of the budget, and from then on the
native library decides what is where (csrc/tiers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ktitan.formats import Span
from ktitan.tiers.record import Record

__all__ = ["CacheNeed", "ExpertShape", "MatrixShape", "StoreLimits", "TierStore"]


@dataclass(frozen=True)
class CacheNeed:
    """What streamed weights need of the budget.

    Attributes:
        pooled_bytes: slots of all experts' records together.
        cycle_bytes: slots of all dense records together.
        row_bytes: buffers for rows of tables.
        least_bytes: below this nothing can be computed with them.
    """

    pooled_bytes: int = 0
    cycle_bytes: int = 0
    row_bytes: int = 0
    least_bytes: int = 0


@dataclass(frozen=True)
class StoreLimits:
    """How a store may read and hold.

    Attributes:
        cache_bytes: of RAM, for records and buffers together.
        io: "auto", "io_uring" or "threads".
        direct: past the page cache, where the file system can.
        depth: reads in flight on a drive; 0: probed.
    """

    cache_bytes: int
    io: str = "auto"
    direct: bool = True
    depth: int = 0


@dataclass(frozen=True)
class MatrixShape:
    """A matrix whose bytes are elsewhere: [rows, columns] of a format."""

    format: str
    rows: int
    columns: int


@dataclass(frozen=True)
class ExpertShape:
    """The experts of a layer: E of them, gate and up [I, H] (gate may be None), down [H, I], biases as in `ExpertBank`."""

    experts: int
    gate: MatrixShape | None
    up: MatrixShape
    down: MatrixShape
    activation: str
    gate_bias: torch.Tensor | None = None
    up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None


class TierStore:
    """Owner of what is streamed of one model."""

    def add_experts(self, path: str, records: Sequence[Record], shape: ExpertShape) -> Any:
        """Enter the experts of a layer; record e is expert e, with places (gate, up, down), or (up, down) without gate.

        Returns:
            What `ktitan.native.stream_experts` takes.
        """
        raise NotImplementedError

    def add_matrix(self, path: str, record: Record, shape: MatrixShape) -> Any:
        """Enter the weight of a dense layer, in the order of use; the record has one part.

        Returns:
            What `ktitan.native.stream_linear` takes.
        """
        raise NotImplementedError

    def add_table(self, path: str, spans: Sequence[Span], shape: MatrixShape) -> Any:
        """Enter a table that is read row by row.

        Returns:
            What `ktitan.native.stream_rows` takes.
        """
        raise NotImplementedError

    def open(self, limits: StoreLimits, stamps: Mapping[str, Any]) -> None:
        """Take memory and open the files.

        Args:
            limits: how much, and how.
            stamps: `FileStamp` of every file, by path.

        Raises:
            BudgetError: the cache is too small for the records.
            IoError: a file cannot be opened, or is not the one whose header was read.
            UnsupportedError: there is no native library.
        """
        raise NotImplementedError

    def stats(self) -> dict[str, Any]:
        """Counters since the store was opened, by the names of kt_store_counters and kt_io_counters."""
        raise NotImplementedError

    def drop(self) -> None:
        """Forget what is resident."""
        raise NotImplementedError

    def close(self) -> None:
        """Give everything back; later calls of operators raise UnsupportedError. Closing twice does nothing."""
        raise NotImplementedError
