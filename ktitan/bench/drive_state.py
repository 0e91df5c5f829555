"""The state of drive and page cache that a cold measurement starts from: nothing cached, the usual read-ahead."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["READ_AHEAD_KB", "drop_cached", "read_ahead"]

# Linux's default. Larger values make programs that map their file read many times what they use.
READ_AHEAD_KB = 128


def drop_cached(paths: Sequence[Path]) -> None:
    """Let the page cache forget the files: clean pages that no process maps.

    Raises:
        OSError: one cannot be opened.
    """
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)  # a page that has not been written yet stays
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


@contextmanager
def read_ahead(paths: Sequence[Path], kilobytes: int = READ_AHEAD_KB, root: Path = Path("/sys")) -> Iterator[str]:
    """Set the read-ahead of the drives under `paths` while the block runs, then put it back.

    Yields:
        What it is meanwhile, for the metric: where this user may not set it, what it was found at.
    """
    settings = sorted({setting for path in paths if (setting := _setting(path, root)) is not None})
    before: dict[Path, str] = {}
    try:
        for setting in settings:
            found = setting.read_text("ascii").strip()
            try:
                setting.write_text(str(kilobytes), "ascii")
            except OSError:
                continue  # not root; said below
            before[setting] = found
        seen = sorted({setting.read_text("ascii").strip() for setting in settings})
        yield f"read-ahead {' and '.join(seen)} KB" if seen else "read-ahead unknown"
    finally:
        for setting, found in before.items():
            setting.write_text(found, "ascii")


def _setting(path: Path, root: Path) -> Path | None:
    """The file with the read-ahead of the device under `path`, or None for file systems without one."""
    device = path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    setting = root / "class" / "bdi" / number / "read_ahead_kb"
    if setting.exists():
        return setting
    block = root / "dev" / "block" / number  # a partition: its disk has the setting
    parent = block.resolve().parent / "bdi" / "read_ahead_kb"
    return parent if block.exists() and parent.exists() else None
