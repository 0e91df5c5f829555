"""A program in a process of its own that answers lines with lines, and what the kernel counted for it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ktitan.bench.confine import MemoryGroup

__all__ = ["Worker", "status_bytes"]


class Worker:
    """Started at once; `close` ends it. It is a context manager.

    Args:
        command: program and arguments.
        group: the memory group that it runs in, or None.
        variables: what it sees of those of ktitan.env.
    """

    def __init__(self, command: Sequence[str], group: MemoryGroup | None, variables: Mapping[str, str]) -> None:
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  # `close` closes it
        self._process = subprocess.Popen(
            list(command) if group is None else group.command(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            text=True,
            env=dict(variables),
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._process.kill()
        self.close()

    def line(self) -> str:
        """Its next line; "" when it has ended."""
        return "" if self._process.stdout is None else self._process.stdout.readline().strip()

    def ask(self, text: str) -> str:
        """Send a line and wait for the answer; "" when it has ended."""
        try:
            if self._process.stdin is not None:
                self._process.stdin.write(text + "\n")
                self._process.stdin.flush()
        except BrokenPipeError:
            return ""
        return self.line()

    def last_words(self) -> str:
        """The last line that it wrote to stderr."""
        self._words.seek(0)
        lines = self._words.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def drive_bytes(self) -> int:
        """Bytes that it has had fetched from block devices (`read_bytes` of proc(5)); page faults count as reads."""
        lines = Path(f"/proc/{self._process.pid}/io").read_text("ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))

    def peak_bytes(self) -> int:
        """Most memory that was resident at a time, files that it maps included (`VmHWM` of proc(5))."""
        return status_bytes(self._process.pid, "VmHWM")

    def close(self) -> None:
        """End it: its input ends, and after a while it is killed."""
        process = self._process
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._words.close()


def status_bytes(pid: int, field: str) -> int:
    """A size of /proc/PID/status, in bytes; 0 when the process is gone."""
    try:
        lines = Path(f"/proc/{pid or os.getpid()}/status").read_text("ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)
