"""What a repository holds: asked of the hub, or read off the cache."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from huggingface_hub import HfApi, constants, is_offline_mode, snapshot_download
from huggingface_hub.errors import HTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

from ktitan.errors import FormatError, IoError
from ktitan.hub.failures import hub_failures, is_out_of_reach
from ktitan.hub.names import HubName

__all__ = ["Listing", "list_files", "snapshot_of"]

logger = logging.getLogger(__name__)

_COMMIT = re.compile(r"[0-9a-f]{40,64}")


@dataclass(frozen=True)
class Listing:
    """The files of one commit.

    Attributes:
        name: as it was asked for.
        commit: the commit's hash.
        files: bytes by path.
        folder: where the cache keeps (what it has of) this commit, or None.
        from_hub: False when only the cache was read, and `files` is what it has.
        is_current: the cache knows that the revision means this commit.
    """

    name: HubName
    commit: str
    files: Mapping[str, int]
    folder: Path | None
    from_hub: bool
    is_current: bool

    def is_cached(self, path: str) -> bool:
        """Whether the cache has this file whole: huggingface_hub links a file in when its last byte is there."""
        return self.folder is not None and (self.folder / path).is_file()


def list_files(name: HubName) -> Listing:
    """Ask the hub; offline, or when it cannot be reached, the cache answers.

    Raises:
        WeightError: the hub does not know or give it, or nobody can be asked.
        FormatError: the hub lists a file that would leave the model's folder.
    """
    if is_offline_mode():
        return _cached(name, OfflineModeIsEnabled())
    with hub_failures(name):
        try:
            info = HfApi().model_info(
                name.repo, revision=name.revision, files_metadata=True, timeout=constants.HF_HUB_ETAG_TIMEOUT
            )
        except (HTTPError, OSError) as error:
            if not is_out_of_reach(error):
                raise
            listing = _cached(name, error)
            logger.warning("%s: the hub cannot be asked (%s); the cached copy is used", name, type(error).__name__)
            return listing
        except (TypeError, KeyError) as error:
            raise ValueError(f"no description of a model: {error}") from error
        commit = str(info.sha)
        files = {one.rfilename: one.size or 0 for one in info.siblings or ()}
    _check(name, commit, files)
    folder = snapshot_of(replace(name, revision=commit))
    return Listing(name, commit, files, folder, True, folder is not None and snapshot_of(name) == folder)


def snapshot_of(name: HubName) -> Path | None:
    """The folder of this revision in the cache, however complete it is; asks nobody.

    Raises:
        IoError: what the cache holds of it is broken.
    """
    try:
        # With no file wanted, none can be missing.
        return Path(snapshot_download(name.repo, revision=name.revision, local_files_only=True, allow_patterns=[]))
    except LocalEntryNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        folder = Path(constants.HF_HUB_CACHE) / f"models--{name.repo.replace('/', '--')}"
        raise IoError(
            f"its part of the cache is broken: {error}", str(name), f"delete {folder} by hand, then pull it again"
        ) from error


def _cached(name: HubName, reason: Exception) -> Listing:
    folder = snapshot_of(name)
    if folder is None:
        with hub_failures(name):
            raise reason
    files = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    return Listing(name, folder.name, files, folder, False, True)


def _check(name: HubName, commit: str, files: Mapping[str, int]) -> None:
    """What comes from a server becomes paths here, so it is looked at first."""
    if not _COMMIT.fullmatch(commit):
        raise FormatError(f"the hub names {commit!r} as its commit", str(name), "check HF_ENDPOINT")
    for path in files:
        pieces = PurePosixPath(path).parts
        if "\\" in path or path.startswith("/") or not pieces or ".." in pieces:
            raise FormatError(f"the hub lists {path!r}, which leaves the model's folder", str(name), "do not trust it")
