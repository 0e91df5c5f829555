"""How files can be read: the file system and O_DIRECT at a path, io_uring, and where models from the hub are kept."""

from __future__ import annotations

import errno
import mmap
import os
import re
import shutil
import tempfile
from contextlib import closing
from pathlib import Path

from ktitan.cgroups import read_text
from ktitan.doctor.finding import Finding, format_bytes
from ktitan.native.io_uring import io_uring_fault

__all__ = ["storage"]

_BUFFERED = "reads go through the page cache instead; keep models on ext4, xfs or btrfs for the drive's full speed"
_NO_RING = {
    errno.ENOSYS: ("not in this kernel", "use Linux 5.6 or newer; until then threads read"),
    errno.EPERM: (
        "refused by a seccomp profile or by kernel.io_uring_disabled",
        "allow io_uring_setup in the container's profile, or set kernel.io_uring_disabled=0; until then threads read",
    ),
    errno.ENOMEM: ("refused: too little memory may be locked", "ulimit -l unlimited; until then threads read"),
}


def storage(path: Path | None) -> list[Finding]:
    """io_uring, then the file system, free space and O_DIRECT at `path`, or where the hub's cache is."""
    cache = _hub_cache()
    findings = [_io_uring()]
    if cache is not None:
        findings.append(Finding("hub cache", f"{cache}{'' if os.path.exists(cache) else ' (not there yet)'}"))
    place = _existing(path or cache or Path.cwd())
    return [*findings, *_at(place)]


def _io_uring() -> Finding:
    fault = io_uring_fault()
    if fault is None:
        return Finding("io_uring", "available")
    value, remedy = _NO_RING.get(fault, (f"refused: {os.strerror(fault)}", "threads read instead"))
    return Finding("io_uring", value, "warning", remedy)


def _hub_cache() -> Path | None:
    try:
        from huggingface_hub.constants import HF_HUB_CACHE
    except ImportError:
        return None  # named among the packages
    return Path(HF_HUB_CACHE)


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    path = path.absolute()
    # os.path's answer is no where a folder above may not be entered; Path's is an error.
    return next(place for place in (path, *path.parents) if os.path.exists(place))


def _at(place: Path) -> list[Finding]:
    free = format_bytes(shutil.disk_usage(place).free)
    return [
        Finding("path", f"{place}: {file_system(place)}, {free} free"),
        _direct(place),
    ]


def file_system(place: Path, mounts: str | None = None) -> str:
    """The type of the file system that a path is on ("ext4"), from `/proc/self/mountinfo` (proc(5))."""
    text = read_text(Path("/proc/self/mountinfo")) if mounts is None else mounts
    real = Path(os.path.realpath(place))
    best, kind = -1, "unknown file system"
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        if len(left.split()) < 5 or not right.split():
            continue
        # Spaces and the like stand there in octal.
        point = Path(re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), left.split()[4]))
        # Of mounts at one point the last one covers the others.
        if real.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), right.split()[0]
    return kind


def _direct(place: Path) -> Finding:
    try:
        if place.is_file():
            read_direct(place)
        else:
            with tempfile.NamedTemporaryFile(dir=place, prefix=".ktitan-doctor-") as made:
                made.write(bytes(mmap.PAGESIZE))
                made.flush()
                read_direct(Path(made.name))
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC):
            remedy = "give a file that you may read, or a folder that you may write: ktitan doctor PATH"
            return Finding("O_DIRECT", f"not tried: {error.strerror}", "warning", remedy)
        return Finding("O_DIRECT", f"refused: {error.strerror}", "warning", _BUFFERED)
    return Finding("O_DIRECT", "works")


def read_direct(file: Path) -> None:
    """Read the first page of a file past the page cache.

    Raises:
        OSError: the file cannot be opened, or its file system has no direct reads.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT)
    try:
        with closing(mmap.mmap(-1, mmap.PAGESIZE)) as page:
            os.preadv(descriptor, [page], 0)
    finally:
        os.close(descriptor)
