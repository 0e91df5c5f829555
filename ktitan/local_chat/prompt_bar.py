"""How far a long prompt is: a bar on stderr while it is read, gone before the answer begins."""

from __future__ import annotations

from threading import Lock, Timer
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

__all__ = ["PromptBar"]

# Prompts that are read sooner show nothing.
PATIENCE_SECONDS = 1.0


class _Rate(ProgressColumn):
    """Tokens a second, once that is known."""

    def render(self, task: Task) -> Text:
        """The rate of the last chunks."""
        return Text(f"{task.speed:.0f} tokens/s" if task.speed else "")


class PromptBar:
    """Tokens done and in all, rate and time left, on a terminal; nothing anywhere else.

    A timer starts it, since the first chunk alone may take long.
    """

    def __init__(self, console: Console, patience_seconds: float = PATIENCE_SECONDS) -> None:
        columns = (TextColumn("reading the prompt"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("", total=None)
        self._lock = Lock()
        self._is_closed = self._is_gone = False
        self._timer = Timer(patience_seconds, self._start)
        self._timer.daemon = True

    def __enter__(self) -> PromptBar:
        if not self._progress.disable:
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def show(self, done_tokens: int, total_tokens: int) -> None:
        """So many tokens of the prompt have been read."""
        self._progress.update(self._task, completed=done_tokens, total=total_tokens)

    def close(self) -> None:
        """Take the bar away; once is enough."""
        if self._is_gone:
            return
        with self._lock:
            self._is_closed = True
            self._timer.cancel()
            self._progress.stop()
        self._is_gone = True  # only now: Ctrl-C may come in between, and __exit__ then does the rest

    def _start(self) -> None:
        with self._lock:
            if not self._is_closed:
                self._progress.start()
