'''A question from the terminal: one line, or several between two `"""`.'''

from __future__ import annotations

import contextlib
import sys

from rich.console import Console

__all__ = ["Reader"]

PROMPT, MORE = "> ", ". "
FENCE = '"""'


class Reader:
    """Reads questions from stdin, with line editing where both ends are terminals; its prompts never go to a pipe."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._edits = sys.stdin.isatty() and sys.stdout.isatty()
        if self._edits:
            # Importing it gives `input` cursor keys and history; some builds of Python lack it.
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401

    def read(self) -> str | None:
        """The next question, or None at the end of the input.

        Raises:
            KeyboardInterrupt: Ctrl-C; what was typed of this question is gone.
        """
        line = self._line(PROMPT)
        if line is None or not line.lstrip().startswith(FENCE):
            return line
        lines = [line.lstrip()[len(FENCE) :]]
        while not lines[-1].rstrip().endswith(FENCE):
            line = self._line(MORE)
            if line is None:
                return None
            lines.append(line)
        return "\n".join(lines).rstrip().removesuffix(FENCE).strip("\n")

    def _line(self, prompt: str) -> str | None:
        if self._edits:
            try:
                return input(prompt)
            except EOFError:
                return None
        self._console.print(prompt, end="")
        line = sys.stdin.readline()
        return line.rstrip("\r\n") if line else None
