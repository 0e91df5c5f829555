"""The native store: its C structures, its life, and what its status numbers mean (csrc/tiers/ktitan_tiers.h)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from ktitan.errors import BudgetError, HardwareError, IoError, UnsupportedError
from ktitan.native.library import loaded

__all__ = ["IO_MODES", "NativeRecord", "NativeStore"]

IO_MODES = {"auto": 0, "io_uring": 1, "threads": 2}

# enum kt_status, enum kt_store_status and enum kt_io_fault.
_OK, _NO_MEMORY = 0, 1
IO_FAILED = 16
_SHORT, _CHANGED = -1, -2
_FAULT_BASE = 1000

_CHANGED_REMEDY = "put the same file back, or load the model again"


class _Counted(ctypes.Structure):
    """A structure of numbers that reads as a dict."""

    def as_dict(self) -> dict[str, Any]:
        values = ((name, getattr(self, name)) for name, *_ in self._fields_)
        return {name: value.as_dict() if isinstance(value, _Counted) else value for name, value in values}


class _Stamp(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_uint64),
        ("inode", ctypes.c_uint64),
        ("bytes", ctypes.c_int64),
        ("modified_ns", ctypes.c_int64),
    )


class _IoCounters(_Counted):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("reads", "read_bytes", "wanted_bytes", "busy_ns", "wait_ns")),
        *((name, ctypes.c_int32) for name in ("uring", "registered", "direct_files", "files")),
    )


class _Counters(_Counted):
    _fields_ = (
        *(
            (name, ctypes.c_int64)
            for name in (
                "demands",
                "hits",
                "misses",
                "evictions",
                "waves",
                "resident_bytes",
                "arena_bytes",
                "filled_bytes",
                "stall_ns",
                "compute_ns",
                "row_reads",
            )
        ),
        ("io", _IoCounters),
    )


class _Fault(ctypes.Structure):
    _fields_ = (
        ("error", ctypes.c_int32),
        ("file", ctypes.c_int32),
        ("offset", ctypes.c_int64),
        ("record", ctypes.c_int64),
    )


class _Spec(ctypes.Structure):
    _fields_ = (
        ("records", ctypes.c_void_p),
        ("record_count", ctypes.c_int64),
        ("extents", ctypes.c_void_p),
        ("pool_slot_bytes", ctypes.c_void_p),
        ("pool_slots", ctypes.c_void_p),
        ("cycle_bytes", ctypes.c_int64),
        ("row_bytes", ctypes.c_int64),
        ("pools", ctypes.c_int32),
        ("mode", ctypes.c_int32),
        ("direct", ctypes.c_int32),
        ("depth", ctypes.c_int32),
    )


# kt_extent and kt_record; numpy lays them out as C does.
EXTENT = np.dtype([("offset", "i8"), ("bytes", "i8"), ("at", "i8"), ("file", "i4")], align=True)
_RECORD = np.dtype([("first_extent", "i8"), ("slot_bytes", "i8"), ("extents", "i4"), ("pool", "i4")], align=True)


@dataclass(frozen=True, slots=True)
class NativeRecord:
    """A record for the native store; `extents` are (file number, offset, bytes, at), pool -1 is the dense cycle."""

    name: str
    extents: tuple[tuple[int, int, int, int], ...]
    slot_bytes: int
    pool: int


class NativeStore:
    """A kt_store; one per model. Closed and not yet opened are the same state.

    Attributes:
        address: of the kt_store, 0 when there is none.
    """

    def __init__(self) -> None:
        self.address = 0
        self._names: list[str] = []
        self._files: list[str] = []
        self._process = 0
        self._why = "it is not open yet: load the model first"

    def open(
        self,
        records: Sequence[NativeRecord],
        pools: Sequence[tuple[int, int]],
        cycle_bytes: int,
        row_bytes: int,
        *,
        mode: str = "auto",
        direct: bool = True,
        depth: int = 0,
    ) -> None:
        """Take memory and start the reader.

        Args:
            records: all that is streamed, dense ones in the order of use.
            pools: (bytes of a slot, slots) of each size class.
            cycle_bytes: for the dense records.
            row_bytes: for buffers of rows.
            mode: a key of `IO_MODES`.
            direct: past the page cache.
            depth: reads in flight on a drive; 0: probed.

        Raises:
            BudgetError: there is not so much memory.
            HardwareError: there is no native library, or it refuses the sizes.
        """
        extents = np.array([(o, n, at, file) for r in records for file, o, n, at in r.extents], EXTENT)
        firsts = np.cumsum([0, *(len(record.extents) for record in records)])
        rows = [(firsts[i], r.slot_bytes, len(r.extents), r.pool) for i, r in enumerate(records)]
        table = np.array(rows, _RECORD)
        slot_bytes = np.array([size for size, _ in pools], np.int64)
        slots = np.array([count for _, count in pools], np.int64)
        spec = _Spec(
            table.ctypes.data,
            len(records),
            extents.ctypes.data,
            slot_bytes.ctypes.data,
            slots.ctypes.data,
            cycle_bytes,
            row_bytes,
            len(pools),
            IO_MODES[mode],
            int(direct),
            depth,
        )
        made = ctypes.c_void_p()
        status = loaded().kt_store_open(ctypes.byref(spec), ctypes.byref(made))
        if status == _NO_MEMORY:
            total = sum(size * count for size, count in pools) + cycle_bytes + row_bytes
            raise BudgetError(f"no memory for a cache of {total} bytes", "budget", "give a smaller ram budget")
        if status != _OK or not made.value:
            raise HardwareError(
                f"the native library refused the store (status {status})", remedy="reinstall ktitan; its parts differ"
            )
        self.address, self._process = made.value, os.getpid()
        self._names, self._files = [record.name for record in records], []

    def add_file(self, path: str, stamp: Any) -> int:
        """Open a file for reading; its number.

        Args:
            path: of the file.
            stamp: `ktitan.weights.files.FileStamp` of it, or None for a file that is taken as it is.

        Raises:
            IoError: it cannot be opened, or is not the one whose header was read.
        """
        given = None
        if stamp is not None:
            given = ctypes.byref(_Stamp(stamp.device, stamp.inode, stamp.size, stamp.modified_ns))
        number = int(loaded().kt_store_add_file(self.address, os.fsencode(path), given))
        if number < 0:
            raise _io_error(-number if number > -_FAULT_BASE // 2 else number + _FAULT_BASE, path, "")
        self._files.append(path)
        return number

    def counters(self) -> dict[str, Any]:
        """kt_store_counters as a dict, with those of the reader under "io"; zeros when it is not open."""
        found = _Counters()
        if self.address:
            loaded().kt_store_count(self.address, ctypes.byref(found))
        return found.as_dict()

    def drop(self) -> None:
        """Forget what is resident and nobody uses."""
        if self.address:
            loaded().kt_store_drop(self.address)

    def close(self) -> None:
        """Wait for reads, then give everything back."""
        address, self.address = self.address, 0
        self._why = "it was closed by undo(): load the model again"
        if address and self._process == os.getpid():
            loaded().kt_store_close(address)

    def check_open(self) -> int:
        """The address.

        Raises:
            UnsupportedError: the store is not open, or was opened by the process that this one was forked from.
        """
        if self.address and self._process == os.getpid():
            return self.address
        why = (
            "it belongs to the process that this one was forked from: load the model here"
            if self.address
            else self._why
        )
        what, _, remedy = why.partition(": ")
        raise UnsupportedError(f"the store of streamed weights cannot be used: {what}", "store", remedy)

    def raise_fault(self) -> NoReturn:
        """Raise what stopped the last call.

        Raises:
            IoError: naming file, offset and record.
        """
        found = _Fault()
        loaded().kt_store_last_fault(self.address, ctypes.byref(found))
        file = self._files[found.file] if 0 <= found.file < len(self._files) else "a file"
        name = self._names[found.record] if 0 <= found.record < len(self._names) else "a row of a table"
        raise _io_error(found.error, file, f"offset {found.offset}, for {name}")

    def __deepcopy__(self, memo: Mapping[int, Any]) -> NativeStore:
        return self  # a copied model streams from the same store

    def __reduce__(self) -> Any:
        raise UnsupportedError(
            "streamed weights cannot be pickled", "store", "call model.ktitan.undo() first, or load the model there"
        )

    def __del__(self) -> None:
        self.close()


def _io_error(error: int, path: str, place: str) -> IoError:
    where = f"{path}, {place}" if place else path
    if error == _SHORT:
        return IoError("the file ends early: it was cut since its header was read", where, _CHANGED_REMEDY)
    if error == _CHANGED:
        return IoError("the file was replaced or changed since its header was read", where, _CHANGED_REMEDY)
    return IoError.of(OSError(error, os.strerror(error)), "streamed weights cannot be read", where)
