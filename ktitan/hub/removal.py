"""Removing models from the cache; huggingface_hub deletes, so that shared files stay."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from huggingface_hub import CachedRepoInfo, CachedRevisionInfo, DeleteCacheStrategy, HFCacheInfo

from ktitan.errors import IoError, UnsupportedError, WeightError
from ktitan.hub.cache import cache_folder, file_sizes, path_of, scan
from ktitan.hub.gguf_files import find_models, pick_model
from ktitan.hub.names import HubName
from ktitan.registry import nearest

__all__ = ["Removal", "plan_removal"]


@dataclass(frozen=True)
class Removal:
    """What would be deleted, before it is.

    Attributes:
        what: in words.
        freed_bytes: what the drive gets back; files that another revision shares stay.
    """

    what: str
    freed_bytes: int
    strategy: DeleteCacheStrategy

    def execute(self) -> None:
        """Delete.

        Raises:
            IoError: something could not be deleted.
        """
        self.strategy.execute()
        left = [
            path for path in (*self.strategy.repos, *self.strategy.snapshots, *self.strategy.blobs) if path.exists()
        ]
        if left:
            raise IoError("could not be deleted", str(left[0]), "check its permissions and who uses it")


def plan_removal(name: HubName) -> Removal:
    """Find what `name` means in the cache: one GGUF model, one revision, or the whole repository.

    Raises:
        WeightError: the cache does not have it; the nearest names are in the remedy.
        UnsupportedError: this huggingface_hub deletes no single files.
    """
    cache = scan()
    repo = next((one for one in cache.repos if _is(one, name)), None) if cache is not None else None
    if cache is None or repo is None:
        raise _unknown(name, cache)
    revisions = _revisions(repo, name)
    if name.quant is None and name.file is None:
        return _whole(cache, repo, revisions)
    return _gguf(cache, repo, revisions, name)


def _is(repo: CachedRepoInfo, name: HubName) -> bool:
    return repo.repo_type == "model" and repo.repo_id == name.repo


def _unknown(name: HubName, cache: HFCacheInfo | None) -> WeightError:
    """Broken entries, which huggingface_hub cannot read either, are named as what they are."""
    broken = [str(one) for one in cache.warnings] if cache is not None else []
    folder = f"models--{name.repo.replace('/', '--')}"
    named = re.compile(rf"{re.escape(folder)}(?!\.?[\w-])")
    reason = next((text for text in broken if named.search(text)), None)
    if reason is not None:
        return WeightError(
            f"its part of the cache is broken: {reason}", str(name), f"delete {cache_folder() / folder} by hand"
        )
    ids = {one.repo_id for one in cache.repos if one.repo_type == "model"} if cache is not None else set()
    return WeightError(
        "no such model is in the cache", str(name), nearest(name.repo, ids) if ids else "the cache is empty"
    )


def _revisions(repo: CachedRepoInfo, name: HubName) -> list[CachedRevisionInfo]:
    """Those that `name` means: all of them when it names none; a commit may be given by its first 7 digits or more."""
    if name.revision is None:
        return list(repo.revisions)
    wanted = name.revision
    found = [
        one
        for one in repo.revisions
        if wanted in one.refs or (len(wanted) >= 7 and one.commit_hash.startswith(wanted.lower()))
    ]
    if len(found) == 1:
        return found
    known = {ref for one in repo.revisions for ref in (*one.refs, one.commit_hash)}
    raise WeightError(f"no revision {wanted!r} of it is in the cache", name.repo, nearest(wanted, known))


def _whole(cache: HFCacheInfo, repo: CachedRepoInfo, revisions: Sequence[CachedRevisionInfo]) -> Removal:
    strategy = cache.delete_revisions(*(one.commit_hash for one in revisions))
    if len(revisions) == len(repo.revisions):
        what = f"{repo.repo_id}, all that is cached of it"
        if not revisions:
            raise WeightError("nothing of it is in the cache", repo.repo_id, f"delete {repo.repo_path} by hand")
    else:
        what = f"{repo.repo_id}, revision {', '.join(sorted(revisions[0].refs)) or revisions[0].commit_hash}"
    return Removal(what, strategy.expected_freed_size, strategy)


def _gguf(cache: Any, repo: CachedRepoInfo, revisions: Sequence[CachedRevisionInfo], name: HubName) -> Removal:
    """One of several GGUF models; with the last one, the revision goes."""
    if not hasattr(cache, "delete_files"):
        raise UnsupportedError(
            "this version of huggingface_hub deletes whole repositories only",
            str(name),
            f"pip install -U 'huggingface_hub>=2', or: ktitan rm {name.repo}",
        )
    chosen, emptied = [], []
    faults: list[WeightError] = []
    for revision in revisions:
        sizes = file_sizes(revision)
        try:
            model = pick_model(name, find_models(sizes), partial=True)
        except WeightError as error:
            faults.append(error)
            continue
        files = [one for one in revision.files if path_of(one, revision) in model.files]
        chosen += files
        if len(files) == len(revision.files):
            emptied.append(revision)
    if not chosen:
        raise faults[0]
    if emptied and len(emptied) == len(revisions):
        return _whole(cache, repo, emptied)
    strategy = cache.delete_files(*chosen)
    return Removal(f"{name}", strategy.expected_freed_size, strategy)
