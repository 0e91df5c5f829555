"""What the drives under some files give at one size of read: the ceiling of a program that reads whole records.

Random places, several in flight, past the page cache, into 2 MiB pages: with 4 KiB ones a fast drive is held up by the
kernel's work for each page.
"""

from __future__ import annotations

import mmap
import random
import time
from collections.abc import Sequence
from pathlib import Path

from ktitan.bench.drive import DriveFile
from ktitan.bench.team import Team

__all__ = ["RecordReads"]

DEPTH = 8
PROBE_BYTES = 256 << 20
_HUGE_BYTES = 2 << 20
_PAGE_BYTES = 4096


class RecordReads:
    """Reads of `record_bytes` at random places of `files`, in proportion to their sizes. It is a context manager.

    Raises:
        OSError: a file cannot be opened.
    """

    def __init__(self, files: Sequence[Path], record_bytes: int) -> None:
        self.record_bytes = -(-record_bytes // _PAGE_BYTES) * _PAGE_BYTES
        self._files = [DriveFile(path) for path in files if path.stat().st_size >= self.record_bytes]
        self._team = Team(DEPTH)
        self._buffers = [_huge_buffer(self.record_bytes) for _ in range(DEPTH)]

    def __enter__(self) -> RecordReads:
        return self

    def __exit__(self, *_: object) -> None:
        self._team.__exit__(None, None, None)
        for file in self._files:
            file.close()

    @property
    def possible(self) -> bool:
        """Whether any file holds a whole record."""
        return bool(self._files)

    @property
    def how(self) -> str:
        """How the files are read, for the metric."""
        return " and ".join(sorted({file.how for file in self._files}))

    def rate(self) -> float:
        """Bytes a second, over about `PROBE_BYTES`.

        Raises:
            IoError, OSError: a read fails.
        """
        count = max(DEPTH, PROBE_BYTES // self.record_bytes // DEPTH * DEPTH)
        chosen = random.choices(self._files, [file.size_bytes for file in self._files], k=count)
        places = [(file, _place(file.size_bytes, self.record_bytes)) for file in chosen]
        for file in self._files:
            file.start(0)
        start = time.perf_counter()
        self._team.run(_read_all, [(buffer, places[i::DEPTH]) for i, buffer in enumerate(self._buffers)])
        return count * self.record_bytes / (time.perf_counter() - start)


def _read_all(part: tuple[memoryview, list[tuple[DriveFile, int]]]) -> None:
    buffer, places = part
    for file, offset in places:
        file.read(buffer, offset)


def _place(file_bytes: int, record_bytes: int) -> int:
    return random.randrange((file_bytes - record_bytes) // _PAGE_BYTES + 1) * _PAGE_BYTES


def _huge_buffer(size: int) -> memoryview:
    """`size` bytes that begin on a page, in 2 MiB pages where the kernel gives them, touched."""
    whole = mmap.mmap(
        -1, -(-size // _HUGE_BYTES) * _HUGE_BYTES + _HUGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    )
    if hasattr(mmap, "MADV_HUGEPAGE"):
        whole.madvise(mmap.MADV_HUGEPAGE)
    view = memoryview(whole)
    for offset in range(0, len(view), _PAGE_BYTES):
        view[offset] = 1
    return view[:size]
