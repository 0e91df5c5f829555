"""Progress of long work on stderr: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["Steps"]

SECONDS_BETWEEN_LINES = 10.0
COUNTED_IN_BYTES = ("load", "convert", "check")


class Steps:
    """Steps that follow one another, each with its share done, rate and time left.

    Work whose name begins with "load", "convert" or "check" is counted in bytes, all else in tokens.
    """

    def __init__(self) -> None:
        console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[rate]}"))
        self._bars = Progress(
            *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
        )
        self._lines = not console.is_terminal
        self._name = ""
        self._task: Any = None
        self._started = self._said = 0.0

    def __enter__(self) -> Steps:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def show(self, name: str, done: int, total: int) -> None:
        """`done` of `total` units of the step `name`."""
        now = time.monotonic()
        if name != self._name:
            self._begin(name, total, now)
        seconds = now - self._started
        rate = done / seconds if seconds > 0 else 0.0
        self._bars.update(self._task, completed=done, total=total, rate=_rate(name, rate))
        over = done >= total
        if over or (self._lines and now - self._said >= SECONDS_BETWEEN_LINES):
            self._said = now
            end = f"{seconds:.1f} s" if over else f"{(total - done) / rate:.0f} s left" if rate else "starting"
            self._bars.console.print(
                f"{name}: {_amount(name, done)} of {_amount(name, total)}, {_rate(name, rate)}, {end}"
            )

    def _begin(self, name: str, total: int, now: float) -> None:
        self._name, self._started, self._said = name, now, now
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(name, total=total, rate="")


def _amount(name: str, count: float) -> str:
    from ktitan.tiers import format_bytes

    return format_bytes(count) if name.startswith(COUNTED_IN_BYTES) else f"{count:.0f} tokens"


def _rate(name: str, rate: float) -> str:
    return f"{_amount(name, rate)}/s"
