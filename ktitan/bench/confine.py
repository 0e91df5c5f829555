"""A memory control group for a process that is started in it: what a program does with less RAM than its model.

Page cache counts, too, so a program that maps its file has exactly the same room as one that reads it. Sources: the
kernel's admin-guide, `cgroup-v1/memory` and `cgroup-v2`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ktitan.errors import HardwareError, IoError

__all__ = ["MemoryGroup", "memory_group"]

MOUNT = Path("/sys/fs/cgroup")
_REMEDY = "run it as root on a system with memory control groups, or without --limit"
# Pages that are still being given back keep a group busy for a moment.
_REMOVE_TRIES, _REMOVE_PAUSE = 50, 0.1


@dataclass(frozen=True)
class MemoryGroup:
    """A group with a limit and without swap.

    Attributes:
        folder: its control files.
        limit_bytes: anonymous memory and page cache together.
        unified: version 2.
    """

    folder: Path
    limit_bytes: int
    unified: bool

    def command(self, command: Sequence[str]) -> list[str]:
        """`command`, started inside: a shell enters the group and becomes it, so that all its memory counts."""
        return ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.folder / "cgroup.procs"), *command]

    def kills(self) -> int:
        """Processes that the kernel has ended here for want of memory."""
        name = "memory.events" if self.unified else "memory.oom_control"
        lines = (line.split() for line in (self.folder / name).read_text("ascii").splitlines())
        return next((int(line[1]) for line in lines if line[0] == "oom_kill"), 0)

    def peak_bytes(self) -> int:
        """The most that the group has ever held, page cache included; 0 where the kernel does not tell."""
        try:
            return int(
                (self.folder / ("memory.peak" if self.unified else "memory.max_usage_in_bytes")).read_text("ascii")
            )
        except OSError:
            return 0


@contextmanager
def memory_group(limit_bytes: int, mount: Path = MOUNT) -> Iterator[MemoryGroup]:
    """A group of `limit_bytes` for as long as the block runs; the processes in it must have ended by then.

    Raises:
        HardwareError: this user cannot make one, or there is no memory controller.
        IoError: it cannot be removed.
    """
    base, unified = _hierarchy(mount)
    folder = base / f"ktitan-bench-{os.getpid()}-{time.monotonic_ns()}"
    try:
        folder.mkdir()
    except OSError as error:
        raise HardwareError(f"no memory control group can be made: {error.strerror}", str(base), _REMEDY) from error
    try:
        try:
            _set_limit(folder, limit_bytes, unified)
        except OSError as error:
            raise HardwareError(f"memory cannot be limited: {error.strerror}", str(error.filename), _REMEDY) from error
        yield MemoryGroup(folder, limit_bytes, unified)
    finally:
        _remove(folder)


def _hierarchy(mount: Path) -> tuple[Path, bool]:
    """The folder that groups are made in, and whether it is version 2."""
    if (mount / "memory" / "memory.limit_in_bytes").exists():
        return mount / "memory", False
    try:
        controllers = (mount / "cgroup.subtree_control").read_text("ascii").split()
    except OSError:
        controllers = []
    if "memory" not in controllers:
        raise HardwareError("there is no memory controller of control groups", str(mount), _REMEDY)
    return mount, True


def _set_limit(folder: Path, limit_bytes: int, unified: bool) -> None:
    if unified:
        (folder / "memory.max").write_text(str(limit_bytes), "ascii")
        swap = folder / "memory.swap.max"
        if swap.exists():
            swap.write_text("0", "ascii")
        return
    (folder / "memory.limit_in_bytes").write_text(str(limit_bytes), "ascii")
    (folder / "memory.swappiness").write_text("0", "ascii")
    both = folder / "memory.memsw.limit_in_bytes"
    if both.exists():  # without it the kernel does not count swap, and swappiness 0 keeps the group out of it
        both.write_text(str(limit_bytes), "ascii")


def _remove(folder: Path) -> None:
    for _ in range(_REMOVE_TRIES):
        try:
            folder.rmdir()
        except OSError:
            time.sleep(_REMOVE_PAUSE)
        else:
            return
    raise IoError(
        "a control group cannot be removed", str(folder), "end what still runs in it, then remove it by rmdir"
    )
