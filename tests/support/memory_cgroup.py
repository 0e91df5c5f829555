"""A memory cgroup (v1) of a given size without swap, and programs in it. Needs root and a mounted v1 hierarchy.

Files: the kernel's admin-guide/cgroup-v1/memory.
"""

import os
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path("/sys/fs/cgroup/memory")


def why_not(root=ROOT):
    """Why no group can be made here, or None."""
    if os.geteuid() != 0:
        return "memory cgroups are for root"
    if not (root / "memory.limit_in_bytes").is_file():
        return f"no cgroup v1 memory hierarchy at {root}"
    return None if os.access(root, os.W_OK) else f"{root} is read-only"


@contextmanager
def memory_cgroup(limit_bytes, root=ROOT):
    """A group that may hold `limit_bytes`, page cache included; it is removed with what still runs in it.

    Without swap accounting in the kernel only swappiness 0 keeps the group from swapping, which then counts as off.
    """
    reason = why_not(root)
    if reason is not None:
        pytest.skip(reason)
    folder = root / f"ktitan-test-{os.getpid()}-{time.monotonic_ns()}"
    folder.mkdir()
    try:
        (folder / "memory.swappiness").write_text("0")
        (folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
        both = folder / "memory.memsw.limit_in_bytes"
        if both.is_file():
            both.write_text(str(limit_bytes))
        yield Group(folder)
    finally:
        _remove(folder)


class Group:
    """A group that is there."""

    def __init__(self, folder):
        self.folder = folder

    def run(self, command, **options):
        """Run `command` in the group to its end.

        Returns:
            returncode (-9: killed), stdout, stderr, peak_bytes of the group (page cache included), kills.
        """
        entering = 'echo $$ > "$0" && exec "$@"'
        command = ["/bin/sh", "-c", entering, str(self.folder / "cgroup.procs"), *map(str, command)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
        return SimpleNamespace(
            returncode=done.returncode,
            stdout=done.stdout,
            stderr=done.stderr,
            peak_bytes=self._number("memory.max_usage_in_bytes"),
            kills=self.kills,
        )

    @property
    def kills(self):
        """Processes that the kernel killed because the group was full."""
        pairs = (line.split() for line in (self.folder / "memory.oom_control").read_text().splitlines())
        return next((int(pair[1]) for pair in pairs if pair[0] == "oom_kill"), 0)

    def _number(self, name):
        return int((self.folder / name).read_text())


def _remove(folder):
    """Remove a group; what a failed test left running in it is killed first."""
    for _ in range(100):
        for pid in (folder / "cgroup.procs").read_text().split():
            os.kill(int(pid), 9)
        try:
            folder.rmdir()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"{folder} cannot be removed")
