"""A few threads that share the items of a job; compiled kernels let go of the interpreter's lock."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

__all__ = ["Workers", "cut"]

# Weight bytes times activation rows below which a further thread costs more than it saves.
_PIECE_BYTES = 200_000
_PIECE_ROWS = 16


class Workers:
    """`count` threads, the caller's included; the others are started by the first job that has work for them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ThreadPoolExecutor | None = None
        self._process = 0

    def run(self, task: Callable[[int], None], items: int) -> None:
        """Call `task` with 0 to items - 1, each once, in any order and in any thread; errors are raised here."""
        if self.count == 1 or items == 1:
            for item in range(items):
                task(item)
            return
        numbers = itertools.count()

        def work() -> None:
            while (item := next(numbers)) < items:
                task(item)

        helpers = [self._threads().submit(work) for _ in range(min(self.count, items) - 1)]
        try:
            work()
        finally:
            # Also after an error of our own: helpers use arrays that the caller is about to drop.
            wait(helpers)
        for helper in helpers:
            helper.result()

    def _threads(self) -> ThreadPoolExecutor:
        # A forked child has the object but not the threads.
        if self._pool is None or self._process != os.getpid():
            self._pool = ThreadPoolExecutor(max(self.count - 1, 1), "ktitan-numba")
            self._process = os.getpid()
        return self._pool


def cut(rows: int, total: int, row_bytes: int, threads: int) -> list[tuple[int, int]]:
    """Rows 0..rows-1 of one matrix in pieces [first, last), so that all `total` rows of a job keep `threads` busy.

    `row_bytes` is the work of one row: its bytes times the activation rows it meets.
    """
    least = max(_PIECE_ROWS, -(-_PIECE_BYTES // max(row_bytes, 1)))
    piece = rows if threads == 1 else max(least, -(-total // (4 * threads)))
    return [(first, min(first + piece, rows)) for first in range(0, rows, max(piece, 1))]
