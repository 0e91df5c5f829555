"""The native store: its C structures, its life, and what its status numbers mean (csrc/tiers/ktitan_tiers.h)."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch

from ktitan.errors import BudgetError, HardwareError, IoError, UnsupportedError
from ktitan.native.arguments import FLOAT_DTYPES
from ktitan.native.io_structs import (
    MODES,
    CountedStruct,
    IoCounters,
    Stamp,
    StampStruct,
    fault_of_add,
    no_ring,
    read_fault,
)
from ktitan.native.library import loaded
from ktitan.native.predict import Predictor

__all__ = ["EXTENT", "IO_FAILED", "PREFETCH", "NativeRecord", "NativeStore", "StoreSizes"]

# enum kt_status and enum kt_store_status.
_OK, _NO_MEMORY = 0, 1
IO_FAILED = 16
# enum kt_prefetch.
PREFETCH = ("off", "on", "auto")

_log = logging.getLogger(__name__)


class _Counters(CountedStruct):
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
                "steps",
                "tokens",
                "sequences",
                "passed",
                "policy",
                "policy_changes",
                "predicted",
                "predicted_right",
                "predicted_absent",
                "predicted_absent_right",
                "predict_ns",
                "guesses",
                "guess_bytes",
                "guesses_used",
                "guesses_late",
                "guesses_wasted",
                "guess_level",
                "guess_steps",
                "guess_changes",
                "guess_gain_ns",
            )
        ),
        ("io", IoCounters),
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
        ("sizes", ctypes.c_void_p),
        ("row_bytes", ctypes.c_int64),
        ("growth", ctypes.c_double),
        ("chunk_tokens", ctypes.c_int64),
        ("pools", ctypes.c_int32),
        ("domains", ctypes.c_int32),
        ("mode", ctypes.c_int32),
        ("direct", ctypes.c_int32),
        ("depth", ctypes.c_int32),
        ("policy", ctypes.c_int32),
        ("prefetch", ctypes.c_int32),
    )


class _SizesStruct(ctypes.Structure):
    _fields_ = (
        ("pool_slots", ctypes.c_void_p),
        ("pool_spares", ctypes.c_void_p),
        ("domain_slots", ctypes.c_void_p),
        ("cycle_bytes", ctypes.c_int64),
    )


# kt_extent and kt_record; numpy lays them out as C does.
EXTENT = np.dtype([("offset", "i8"), ("bytes", "i8"), ("at", "i8"), ("file", "i4")], align=True)
_RECORD = np.dtype(
    [(name, "i8") for name in ("first_extent", "slot_bytes")]
    + [(name, "i4") for name in ("extents", "pool", "domain", "layer")],
    align=True,
)


@dataclass(frozen=True, slots=True)
class NativeRecord:
    """A record for the native store; `extents` are (file number, offset, bytes, at), pool -1 is the dense cycle.

    `layer` counts the layers with experts.
    """

    name: str
    extents: tuple[tuple[int, int, int, int], ...]
    slot_bytes: int
    pool: int
    domain: int = -1
    layer: int = -1


@dataclass(frozen=True, slots=True)
class StoreSizes:
    """How memory is shared out (kt_store_sizes).

    Attributes:
        pools: (bytes of a slot, slots, spare slots) of each size class.
        domain_slots: most members of each domain.
        cycle_bytes: for the dense records.
    """

    pools: tuple[tuple[int, int, int], ...]
    domain_slots: tuple[int, ...]
    cycle_bytes: int


class _Sizes:
    """kt_store_sizes, with the arrays that it points to."""

    def __init__(self, sizes: StoreSizes) -> None:
        columns = [[pool[column] for pool in sizes.pools] for column in (1, 2)]
        self._arrays = [np.array(numbers, np.int64) for numbers in (*columns, sizes.domain_slots)]
        self.struct = _SizesStruct(*(array.ctypes.data for array in self._arrays), sizes.cycle_bytes)


class NativeStore:
    """A kt_store; one per model. Closed and not yet opened are the same state.

    Attributes:
        address: of the kt_store, 0 when there is none.
    """

    def __init__(self) -> None:
        self.address = 0
        self._names: list[str] = []
        self._files: list[str] = []
        self._row_bytes = 0
        self._process = 0
        self._inside: list[int] = []  # threads in native calls with the address
        self._left = threading.Condition()
        self._why = "it is not open yet: load the model first"

    def open(
        self,
        records: Sequence[NativeRecord],
        sizes: StoreSizes,
        row_bytes: int,
        *,
        mode: str = "auto",
        direct: bool = True,
        depth: int = 0,
        policy: int = 0,
        prefetch: str = "off",
        growth: float = 1.0,
        chunk_tokens: int = 512,
    ) -> None:
        """Take memory and start the reader.

        Args:
            records: all that is streamed, dense ones in the order of use.
            sizes: how memory is shared out.
            row_bytes: for buffers of rows.
            mode: a key of `ktitan.native.io_structs.MODES`.
            direct: past the page cache.
            depth: reads in flight on a drive; 0: probed.
            policy: enum kt_policy; -1: the one that measures best.
            prefetch: a key of `PREFETCH`.
            growth: what a token counts more than the one before it.
            chunk_tokens: most tokens of a pass of experts.

        Raises:
            BudgetError: there is not so much memory.
            HardwareError: there is no native library, or it refuses the sizes.
        """
        extents = np.array([(o, n, at, file) for r in records for file, o, n, at in r.extents], EXTENT)
        firsts = np.cumsum([0, *(len(record.extents) for record in records)])
        rows = [(firsts[i], r.slot_bytes, len(r.extents), r.pool, r.domain, r.layer) for i, r in enumerate(records)]
        table = np.array(rows, _RECORD)
        slot_bytes = np.array([pool[0] for pool in sizes.pools], np.int64)
        shared = _Sizes(sizes)
        spec = _Spec(
            table.ctypes.data,
            len(records),
            extents.ctypes.data,
            slot_bytes.ctypes.data,
            ctypes.addressof(shared.struct),
            row_bytes,
            growth,
            chunk_tokens,
            len(sizes.pools),
            len(sizes.domain_slots),
            MODES[mode],
            int(direct),
            depth,
            policy,
            PREFETCH.index(prefetch),
        )
        made = ctypes.c_void_p()
        status = loaded().kt_store_open(ctypes.byref(spec), ctypes.byref(made))
        _check_sizes(status, sizes, row_bytes)
        self.address, self._process = made.value or 0, os.getpid()
        self._names, self._files, self._row_bytes = [record.name for record in records], [], row_bytes

    def add_file(self, path: str, stamp: Stamp | None) -> int:
        """Open a file for reading; its number.

        Args:
            path: of the file.
            stamp: `ktitan.weights.files.FileStamp` of it, or None for a file that is taken as it is.

        Raises:
            IoError: it cannot be opened, or is not the one whose header was read.
        """
        number = int(loaded().kt_store_add_file(self.address, os.fsencode(path), StampStruct.pointer(stamp)))
        if number < 0:
            raise IoError.from_faults([read_fault(fault_of_add(number), path)])
        self._files.append(path)
        return number

    def tell_fallbacks(self, mode: str, direct: bool) -> None:
        """Once all files are there: a line for each way of reading that the system refuses.

        Raises:
            UnsupportedError: io_uring was asked for by name and is refused.
        """
        found = self.counters()["io"]
        if mode != "threads" and not found["uring"]:
            if mode == "io_uring":
                raise UnsupportedError(no_ring(), "store", 'use "auto" or "threads"')
            _log.warning("%s; threads read instead", no_ring())
        through_cache = found["files"] - found["direct_files"]
        if direct and through_cache:
            _log.warning(
                "O_DIRECT is refused for %d of %d files of weights: they are read through the page cache",
                through_cache,
                found["files"],
            )

    @contextmanager
    def opened(self) -> Iterator[int]:
        """The address for a native call: until its end, `close` in another thread waits.

        Raises:
            UnsupportedError: as `check_open`.
        """
        self.check_open()  # before the lock, which a fork may have taken along
        thread = threading.get_ident()
        try:
            with self._left:
                self._inside.append(thread)
                address = self.check_open()
            yield address
        finally:
            with self._left:
                if thread in self._inside:  # Ctrl-C may come before
                    self._inside.remove(thread)
                self._left.notify_all()

    def counters(self) -> dict[str, Any]:
        """kt_store_counters as a dict, with those of the reader under "io"; zeros when it cannot be used."""
        found = _Counters()
        with suppress(UnsupportedError), self.opened() as address:
            loaded().kt_store_count(address, ctypes.byref(found))
        return found.as_dict()

    def foresee(self, predictor: Predictor, hidden: torch.Tensor) -> None:
        """Guess what a layer will choose from `hidden` [T, H], floats on the CPU, the input of a layer without streamed
        experts; what can be read early is. Nothing where the store cannot be used: it changes no result.
        """
        rows = hidden.detach().contiguous()
        if rows.dtype not in FLOAT_DTYPES or not rows.is_cpu:
            return
        with suppress(UnsupportedError), self.opened() as address:
            loaded().kt_store_foresee(
                address, predictor.address, rows.data_ptr(), FLOAT_DTYPES[rows.dtype], rows.shape[0]
            )

    def foretell(self, records: Sequence[int]) -> None:
        """The same for records that are known to be asked for, the first ones first."""
        numbers = np.array(records, np.int64)
        with suppress(UnsupportedError), self.opened() as address:
            loaded().kt_store_foretell(address, numbers.ctypes.data, len(numbers))

    def drop(self) -> None:
        """Forget what is resident and nobody uses."""
        with suppress(UnsupportedError), self.opened() as address:
            loaded().kt_store_drop(address)

    def resize(self, sizes: StoreSizes) -> None:
        """Share the memory out anew, between two calls of other threads; what is to stay is kept.

        Args:
            sizes: with the size classes and domains that the store was opened with.

        Raises:
            BudgetError: there is not so much memory; nothing has changed.
            HardwareError: the native library refuses the sizes; nothing has changed.
            UnsupportedError: as `check_open`.
        """
        shared = _Sizes(sizes)
        with self.opened() as address:
            status = loaded().kt_store_resize(address, ctypes.addressof(shared.struct))
        _check_sizes(status, sizes, self._row_bytes)

    def close(self) -> None:
        """Wait for calls of other threads and for reads, then give everything back."""
        if self._process != os.getpid():
            self.address = 0
            return
        own = threading.get_ident()
        with self._left:
            address, self.address = self.address, 0
            self._why = "it was closed by undo(): load the model again"
            # Not for this thread's own call: a signal's handler may close in the middle of one, once C has returned.
            self._left.wait_for(lambda: all(thread == own for thread in self._inside))
        if address:
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
        raise IoError.from_faults([read_fault(found.error, f"{file}, offset {found.offset}, for {name}")])

    def __deepcopy__(self, memo: Mapping[int, Any]) -> NativeStore:
        return self  # a copied model streams from the same store

    def __reduce__(self) -> Any:
        raise UnsupportedError(
            "streamed weights cannot be pickled", "store", "call model.ktitan.undo() first, or load the model there"
        )

    def __del__(self) -> None:
        self.close()


def _check_sizes(status: int, sizes: StoreSizes, row_bytes: int) -> None:
    """Raise what a native call that shares memory out did not like."""
    if status == _NO_MEMORY:
        total = sum(size * count for size, count, _ in sizes.pools) + sizes.cycle_bytes + row_bytes
        raise BudgetError(f"no memory for a cache of {total} bytes", "budget", "give a smaller ram budget")
    if status != _OK:
        raise HardwareError(
            f"the native library refused the store (status {status})", remedy="reinstall ktitan; its parts differ"
        )
