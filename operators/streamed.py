"""What the streamed operators share: the records of their weights, and when weights cannot stay in files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ktitan.errors import UnsupportedError
from ktitan.formats import StoredRows
from ktitan.native import native_reason
from ktitan.operator import ModuleWeights
from ktitan.tiers.record import Record, lay_out
from ktitan.tiers.store import MatrixShape, TierStore

__all__ = ["NO_RECORD", "Entered", "Rows", "no_library", "shape_of", "store_of", "whole_record"]

# (tensor, first row, rows, entry) -> where they lie; that of an OperatorContext or of ModuleWeights.
Rows = Callable[[str, int, int, "int | None"], "StoredRows | None"]

NO_RECORD = "its rows do not lie in one piece of a file (weights of a model in memory cannot be streamed)"


@dataclass(frozen=True)
class Entered:
    """What a store returned for weights that were entered; copies of a module share it, and it cannot be pickled.

    Attributes:
        handle: what the `stream_*` functions of `ktitan.native` take.
        format: of the weights, for people.
        order: model row i is stored row order[i]; None: the same.
    """

    handle: Any
    format: str
    order: tuple[int, ...] | None = None


def no_library(instead: str) -> str | None:
    """Why nothing can be streamed on this machine, or None; `instead` is the operator that needs no store."""
    reason = native_reason()
    if reason is None:
        return None
    return f"streaming needs the native library, which is {reason} (ktitan doctor says more; {instead} does without)"


def whole_record(rows: Rows, path: str, name: str, count: int) -> tuple[StoredRows, Record] | None:
    """All rows of a matrix as one record, or None where they are torn apart."""
    found = rows(name, 0, count, None)
    record = None if found is None else lay_out(path, [found.spans])
    return None if found is None or record is None else (found, record)


def shape_of(rows: StoredRows) -> MatrixShape:
    """Format and sizes."""
    return MatrixShape(rows.format, rows.rows, rows.columns)


def store_of(weights: ModuleWeights, path: str) -> TierStore:
    """The store of the model that is loaded.

    Raises:
        UnsupportedError: the operator is loaded outside of a plan, which alone makes a store.
    """
    if not isinstance(weights.store, TierStore):
        raise UnsupportedError("there is no store to stream from", path, "load the model by optimize_and_load or load")
    return weights.store
