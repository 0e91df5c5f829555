"""The limits that Linux control groups (v1 and v2) put on this process.

Every function takes the root of a file tree that holds `proc` and `sys`, so that tests can build one. What cannot be
read counts as no limit. A limit of any ancestor binds, so a group's whole path up to its mount is walked.

Sources: cgroups(7), proc(5) for `mountinfo`, and the kernel's admin-guide `cgroup-v2` and `cgroup-v1/memory`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

__all__ = ["MemoryLimit", "cpu_quota", "memory_limits", "read_text"]

# v1 writes "no limit" as the largest page count in bytes; no machine has an exbibyte of memory.
UNLIMITED_BYTES = 1 << 60


@dataclass(frozen=True)
class MemoryLimit:
    """One group's limit; `free_bytes` is what it leaves once its file cache is reclaimed."""

    limit_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class _Mount:
    """Where a hierarchy is mounted, and which of its groups is seen at that place."""

    point: str
    group: str
    unified: bool


def read_text(path: Path) -> str:
    """The text of a small kernel file, empty when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def memory_limits(root: Path = Path("/")) -> list[MemoryLimit]:
    """Every memory limit on this process, innermost group first; empty when there is none."""
    found = [_memory_limit(group) for group in _groups("memory", root)]
    return [limit for limit in found if limit is not None]


def cpu_quota(root: Path = Path("/")) -> float | None:
    """The tightest CPU quota in CPUs (1.5 is one and a half), None when there is none."""
    found = [_cpu_quota(group) for group in _groups("cpu", root)]
    return min((quota for quota in found if quota is not None), default=None)


def _memory_limit(group: Path) -> MemoryLimit | None:
    # `memory.high` stops a group by throttling where `memory.max` kills: neither can be lived beyond.
    files = ("memory.max", "memory.high", "memory.limit_in_bytes")
    limits = [limit for limit in (_number(group / name) for name in files) if limit is not None]
    if not limits or min(limits) >= UNLIMITED_BYTES:
        return None
    used_bytes = _number(group / "memory.current") or _number(group / "memory.usage_in_bytes") or 0
    held_bytes = max(used_bytes - _file_cache_bytes(group), 0)
    return MemoryLimit(min(limits), max(min(limits) - held_bytes, 0))


def _file_cache_bytes(group: Path) -> int:
    """Page cache that the kernel can drop; shared memory is on the anonymous lists and so not in it."""
    pairs = (line.split() for line in read_text(group / "memory.stat").splitlines())
    stat = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
    # v1 counts a group alone under the plain names and with its descendants under `total_`; v2 has the plain ones only.
    prefix = "total_" if "total_inactive_file" in stat else ""
    return stat.get(f"{prefix}inactive_file", 0) + stat.get(f"{prefix}active_file", 0)


def _cpu_quota(group: Path) -> float | None:
    fields = read_text(group / "cpu.max").split()
    if len(fields) == 2 and fields[0].isdecimal() and fields[1].isdecimal():
        quota, period = int(fields[0]), int(fields[1])
    else:
        quota, period = _number(group / "cpu.cfs_quota_us") or 0, _number(group / "cpu.cfs_period_us") or 0
    return quota / period if quota > 0 and period > 0 else None


def _groups(controller: str, root: Path) -> list[Path]:
    """Folders of this process's group and its ancestors in each hierarchy that may carry `controller`."""
    paths = _own_paths(read_text(root / "proc/self/cgroup"))
    folders: list[Path] = []
    for mount in _mounts(controller, read_text(root / "proc/self/mountinfo")):
        own = paths.get("" if mount.unified else controller)
        base = root / mount.point.lstrip("/")
        relative = _below(own or "/", mount.group)
        folders += [base / part for part in (relative, *relative.parents)]
    return [folder for folder in folders if folder.is_dir()]


def _own_paths(text: str) -> dict[str, str]:
    """Group path by controller; the unified hierarchy stands under the empty name."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, separator, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if separator and colon:
            paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def _mounts(controller: str, text: str) -> list[_Mount]:
    """The mounts in `mountinfo` that may carry `controller`; the usual places when it names none."""
    found = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        place, kind = left.split(), right.split()
        if len(place) < 5 or len(kind) < 3:
            continue
        if kind[0] == "cgroup2" or (kind[0] == "cgroup" and controller in kind[2].split(",")):
            found.append(_Mount(place[4], place[3], kind[0] == "cgroup2"))
    usual = [_Mount("/sys/fs/cgroup", "/", True), _Mount(f"/sys/fs/cgroup/{controller}", "/", False)]
    return found or usual


def _below(own: str, mounted: str) -> PurePosixPath:
    """`own` relative to the group that is mounted; the mount itself when it lies outside what is mounted."""
    try:
        relative = PurePosixPath(own).relative_to(mounted)
    except ValueError:
        # A namespace hides how the two relate; the mounted group is then the nearest one that can be seen.
        return PurePosixPath()
    return PurePosixPath() if ".." in relative.parts else relative


def _number(path: Path) -> int | None:
    """The whole number in a kernel file; None for `max`, for nothing and for anything else."""
    text = read_text(path).strip()
    return int(text) if text.lstrip("-").isdecimal() else None
