"""Bringing files of one commit into the cache: room on the drive first, a bar, and an end when Ctrl-C says so."""

from __future__ import annotations

import glob
import logging
import shutil
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from huggingface_hub import constants, snapshot_download
from huggingface_hub.utils import tqdm

from ktitan.errors import BudgetError
from ktitan.hub.failures import hub_failures
from ktitan.hub.listing import Listing
from ktitan.hub.names import HubName
from ktitan.tiers import format_bytes

__all__ = ["bring"]

logger = logging.getLogger(__name__)

_BAR = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}B of {total_fmt}B, {rate_fmt}, {remaining} left"
_TRANSFER = ".transfer"


def bring(listing: Listing, paths: Iterable[str]) -> tuple[Path, int]:
    """The snapshot's folder with `paths` in it, and how many bytes were downloaded for that.

    Whole files stay when a download ends early; the next one brings the others.

    Raises:
        BudgetError: the drive has no room.
        WeightError, IoError: the hub does not give a file, or it cannot be written.
    """
    paths = list(paths)
    missing = [path for path in paths if not listing.is_cached(path)]
    if listing.folder is not None and not missing and listing.is_current:
        return listing.folder, 0
    size = sum(listing.files[path] for path in missing)
    _check_room(listing.name, size)
    if missing:
        logger.info("%s: downloading %d files, %s", listing.name, len(missing), format_bytes(size))
    with hub_failures(listing.name):
        return _download(listing.name, paths, size), size


def _download(name: HubName, paths: Iterable[str], size: int) -> Path:
    """Run snapshot_download in a thread.

    On Ctrl-C it would first finish every file that it has begun. The main thread is the one that Ctrl-C interrupts;
    it then stops the others through their bar.
    """
    stop = threading.Event()
    with ThreadPoolExecutor(1, "ktitan-hub") as pool:
        running = pool.submit(
            snapshot_download,
            name.repo,
            revision=name.revision,
            allow_patterns=[glob.escape(path) for path in paths],
            tqdm_class=_bar_class(str(name), size, stop),
        )
        try:
            return Path(running.result())
        except BaseException:
            stop.set()
            raise


class _Stopped(Exception):
    """Ends a worker of a download that nobody waits for any more."""


def _bar_class(title: str, total_bytes: int, stop: threading.Event) -> type[tqdm]:
    """A class for `snapshot_download(tqdm_class=...)`, which makes several bars of it and adds files up as they start.

    Only the bar of bytes is shown, against the `total_bytes` that are known beforehand; else its time left would be
    that of the files under way. huggingface_hub hides it where stderr is no terminal, or where the user says so.
    """

    class Bar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            if not total_bytes or kwargs.get("unit") != "B" or str(kwargs.get("name", "")).endswith(_TRANSFER):
                kwargs["disable"] = True
            kwargs["bar_format"] = _BAR
            super().__init__(*args, **kwargs)
            super().set_description(title, refresh=False)

        @property
        def total(self) -> int:
            return total_bytes

        @total.setter
        def total(self, value: object) -> None:
            """What huggingface_hub adds up is not needed."""

        def update(self, n: float | None = 1) -> bool | None:
            if stop.is_set():
                raise _Stopped
            shown: bool | None = super().update(n)
            return shown

        def set_description(self, desc: str | None = None, refresh: bool | None = True) -> None:
            """Keep the title."""

    return Bar


def _check_room(name: HubName, size: int) -> None:
    """huggingface_hub only warns, file by file, and then runs into the end of the drive."""
    cache = Path(constants.HF_HUB_CACHE)
    there = next(path for path in (cache, *cache.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    if size > free:
        raise BudgetError(
            f"{format_bytes(size)} of {name} are to be downloaded, and {format_bytes(free)} are free on the drive",
            str(cache),
            "free some space (ktitan list, ktitan rm), or set HF_HOME to a folder on a larger drive",
        )
