"""A fixed set of threads that each do their own part of a run again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import TypeVar

__all__ = ["Team"]

PartT = TypeVar("PartT")
OutT = TypeVar("OutT")


class Team:
    """`size` threads; part i always goes to thread i, so memory that it touched first stays near to it.

    The threads are not pinned: on a shared machine a pinned thread waits for whoever else uses its CPU. What they run
    has to release the GIL for them to run at once.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._stack = ExitStack()
        self._threads = [self._stack.enter_context(ThreadPoolExecutor(1, "ktitan-bench")) for _ in range(size)]

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def run(self, function: Callable[[PartT], OutT], parts: Iterable[PartT]) -> list[OutT]:
        """`function` of each part, in order; raises what the first failing part raised."""
        futures = [thread.submit(function, part) for thread, part in zip(self._threads, parts, strict=True)]
        return [future.result() for future in futures]
