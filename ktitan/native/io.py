"""The native I/O engine by itself: byte ranges of files read into memory, many at a time.

The store has an engine of its own inside the library (csrc/tiers); by this one tests see what it does.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ktitan.errors import IoError, UnsupportedError
from ktitan.native.io_structs import MODES, IoCounters, Stamp, StampStruct, fault_of_add, no_ring, read_fault
from ktitan.native.library import loaded

__all__ = ["PAGE", "IoEngine", "huge_buffer", "layout"]

# KT_PAGE of csrc/tiers/io.h.
PAGE = 4096
_HUGE_PAGE = 2 << 20

_log = logging.getLogger(__name__)


class _Read(ctypes.Structure):
    """kt_read of csrc/tiers/io.h."""

    _fields_ = (
        ("file", ctypes.c_int32),
        ("offset", ctypes.c_int64),
        ("bytes", ctypes.c_int64),
        ("target", ctypes.c_void_p),
        ("tag", ctypes.c_uint64),
    )


class _Done(ctypes.Structure):
    """kt_done of csrc/tiers/io.h."""

    _fields_ = (
        ("tag", ctypes.c_uint64),
        ("error", ctypes.c_int32),
        ("file", ctypes.c_int32),
        ("offset", ctypes.c_int64),
    )


# Results and arguments of the functions of csrc/tiers/io_api.h: p an address, q 64 bits, i 32 bits.
_SIGNATURES = {
    "kt_engine_open": ("p", "iiiq"),
    "kt_engine_close": ("", "p"),
    "kt_engine_add": ("i", "ppp"),
    "kt_engine_register": ("", "ppqq"),
    "kt_engine_submit": ("i", "ppq"),
    "kt_engine_reap": ("q", "ppqi"),
    "kt_engine_pending": ("q", "p"),
    "kt_engine_count": ("", "pp"),
}
_KINDS: dict[str, Any] = {"": None, "p": ctypes.c_void_p, "q": ctypes.c_int64, "i": ctypes.c_int32}


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    handle = loaded()
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(handle, name)
        function.restype = _KINDS[result]
        function.argtypes = [_KINDS[letter] for letter in arguments]
    return handle


def huge_buffer(nbytes: int) -> memoryview:
    """Anonymous memory that begins at a 2 MB boundary, on 2 MB pages where the system gives them.

    The kernel pins the pages of a direct read one by one: with 2 MB pages there are 512 times fewer of them.
    """
    pages = mmap.mmap(-1, nbytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    first = -_address(memoryview(pages)) % _HUGE_PAGE
    try:
        pages.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a kernel without them
        _log.debug("no transparent huge pages")
    return memoryview(pages)[first : first + nbytes]


def layout(ranges: Sequence[tuple[int, int, int]]) -> tuple[list[int], int]:
    """Where `IoEngine.read` puts each (file, offset, nbytes) in its buffer, and the bytes that the buffer needs.

    Each range has whole pages of its own, and lies in its first one where it lies in the file's.
    """
    places, end = [], 0
    for _, offset, nbytes in ranges:
        places.append(end + offset % PAGE)
        end += -(-(offset % PAGE + nbytes) // PAGE) * PAGE
    return places, end


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


class IoEngine:
    """Reads files, past the page cache where they can be; use it in a `with`, or close it.

    Threads may share it: one call runs at a time.

    Args:
        mode: "io_uring", "threads", or "auto": io_uring where it may be used.
        direct: past the page cache.
        depth: reads in flight on a drive; 0: found out while it reads.
        piece_bytes: longer reads are cut; 0: 1 MiB.

    Raises:
        UnsupportedError: no such mode, or io_uring was asked for and is refused.
        HardwareError: there is no native library.
    """

    def __init__(self, mode: str = "auto", direct: bool = True, depth: int = 0, piece_bytes: int = 0) -> None:
        if mode not in MODES:
            raise UnsupportedError(f"I/O mode {mode!r}", remedy=f"use one of: {', '.join(MODES)}")
        self._native = _library()
        self._lock = threading.Lock()
        self._paths: list[str] = []
        self._registered: list[memoryview] = []  # the kernel holds their pages
        self._handle = self._native.kt_engine_open(MODES[mode], direct, depth, piece_bytes)
        if not self._handle:
            raise MemoryError
        if mode != "threads" and not self.counters()["uring"]:
            if mode == "io_uring":
                self.close()
                raise UnsupportedError(no_ring(), remedy='use "auto" or "threads"')
            _log.warning("%s; threads read instead", no_ring())

    def add(self, path: str | os.PathLike[str], stamp: Stamp | None = None) -> int:
        """Open a file; its number in later calls.

        Args:
            path: a regular file.
            stamp: what it must be, and stay; None: anything.

        Raises:
            IoError: it cannot be opened, or is another file.
        """
        with self._lock:
            pointer = StampStruct.pointer(stamp)
            number = int(self._native.kt_engine_add(self._opened(), os.fsencode(path), pointer))
            if number < 0:
                raise IoError.from_faults([read_fault(fault_of_add(number), os.fspath(path))])
            self._paths.append(os.fspath(path))
        return number

    def register(self, buffer: memoryview, piece_bytes: int) -> bool:
        """Let the kernel hold the pages of `buffer`, so that reads need not; no read may straddle two pieces.

        Returns:
            Whether it does: RLIMIT_MEMLOCK may forbid it, and threads have no use for it.
        """
        with self._lock:
            self._native.kt_engine_register(self._opened(), _address(buffer), buffer.nbytes, piece_bytes)
            self._registered.append(buffer)
        return bool(self.counters()["registered"])

    def read(self, ranges: Sequence[tuple[int, int, int]], buffer: memoryview) -> None:
        """Read all (file, offset, nbytes) at once into `buffer`, each at its place of `layout`.

        Raises:
            IoError: some cannot be read, all of them in one error; the others are there.
            UnsupportedError: `buffer` is too small or not aligned to a page, or the engine is closed.
        """
        places, needed = layout(ranges)
        start = _address(buffer)
        if buffer.nbytes < needed or start % PAGE:
            found = f"a buffer of {buffer.nbytes} bytes at {start:#x}"
            raise UnsupportedError(found, remedy=f"make one of {needed} bytes with huge_buffer()")
        reads = (_Read * len(ranges))(
            *(
                _Read(file, offset, nbytes, start + at, 0)
                for (file, offset, nbytes), at in zip(ranges, places, strict=True)
            )
        )
        with self._lock:
            failed = self._read_all(reads)
        if failed:
            faults = [read_fault(error, f"{self._path(file)}, offset {at}") for file, at, error in sorted(failed)]
            raise IoError.from_faults(faults, f"{len(faults)} of {len(ranges)} reads failed")

    def _read_all(self, reads: ctypes.Array[_Read]) -> list[tuple[int, int, int]]:
        """[(file, offset, error)] of the reads that failed."""
        handle, count = self._opened(), len(reads)
        if self._native.kt_engine_submit(handle, reads, count):
            raise MemoryError
        done, failed = (_Done * count)(), []
        try:
            for _ in iter(lambda: self._native.kt_engine_pending(handle), 0):
                now = self._native.kt_engine_reap(handle, done, count, 1)
                failed += [(one.file, one.offset, one.error) for one in done[:now] if one.error]
        finally:  # also after Ctrl-C nothing may be written into the buffer any more
            while self._native.kt_engine_pending(handle):
                self._native.kt_engine_reap(handle, done, count, 1)
        return failed

    def counters(self) -> dict[str, int]:
        """Counters since the engine was opened, by the names of kt_io_counters of csrc/tiers/io.h."""
        counters = IoCounters()
        with self._lock:
            self._native.kt_engine_count(self._opened(), ctypes.byref(counters))
        return counters.as_dict()

    def close(self) -> None:
        """Give everything back; closing twice does nothing."""
        with self._lock:
            handle, self._handle = self._handle, None
            if handle:
                self._native.kt_engine_close(handle)
            self._registered.clear()

    def __enter__(self) -> IoEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def _opened(self) -> int:
        if not self._handle:
            raise UnsupportedError("the I/O engine is closed", remedy="make another one")
        return int(self._handle)

    def _path(self, file: int) -> str:
        return self._paths[file] if 0 <= file < len(self._paths) else f"file {file}"
