"""The models in huggingface_hub's cache that ktitan can run; nothing is asked of the hub."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from huggingface_hub import (
    CachedFileInfo,
    CachedRepoInfo,
    CachedRevisionInfo,
    CacheNotFound,
    HFCacheInfo,
    constants,
    scan_cache_dir,
)

from ktitan.errors import FormatError, IoError
from ktitan.hub.fetch import CONFIG, weight_files
from ktitan.hub.gguf_files import find_models, name_of
from ktitan.hub.names import HubName

__all__ = ["CachedModel", "cache_folder", "file_sizes", "list_models", "path_of", "scan"]

# Endings of classes that write text; encoders, classifiers and diffusion models have others.
_WRITERS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


@dataclass(frozen=True)
class CachedModel:
    """One model in the cache.

    Attributes:
        model: what to call it in any command (with `@revision` where needed).
        kind: "safetensors" or "GGUF".
        revision: branches and tags that mean this commit, else the commit itself.
        commit: the commit's hash.
        bytes: size of its files.
        last_used: when one of its files was last read, as far as the drive notes it (UTC).
        complete: False after a download that was cut, or of config and tokenizer alone.
    """

    model: str
    kind: str
    revision: str
    commit: str
    bytes: int
    last_used: datetime
    complete: bool

    def to_json(self) -> dict[str, Any]:
        """As plain values, the time in ISO 8601."""
        return {**asdict(self), "last_used": self.last_used.isoformat(timespec="seconds")}


def cache_folder() -> Path:
    """Where huggingface_hub keeps models (HF_HOME, HF_HUB_CACHE)."""
    return Path(constants.HF_HUB_CACHE)


def scan() -> HFCacheInfo | None:
    """All of the cache, or None when there is none yet.

    Raises:
        IoError: it cannot be read.
    """
    try:
        return scan_cache_dir(cache_folder())
    except CacheNotFound:
        return None
    except (OSError, ValueError) as error:
        raise IoError(f"the cache cannot be read: {error}", str(cache_folder()), "check its permissions") from error


def list_models() -> list[CachedModel]:
    """The models, by name."""
    cache = scan()
    repos = () if cache is None else cache.repos
    found = [
        model
        for repo in repos
        if repo.repo_type == "model"
        for revision in repo.revisions
        for model in _models_of(repo, revision)
    ]
    return sorted(found, key=lambda model: (model.model.lower(), model.commit))


def file_sizes(revision: CachedRevisionInfo) -> dict[str, int]:
    """Bytes by path of what a snapshot holds."""
    return {path_of(one, revision): one.size_on_disk for one in revision.files}


def path_of(file: CachedFileInfo, revision: CachedRevisionInfo) -> str:
    """A cached file's path inside its repository."""
    return file.file_path.relative_to(revision.snapshot_path).as_posix()


def _models_of(repo: CachedRepoInfo, revision: CachedRevisionInfo) -> Iterable[CachedModel]:
    files = file_sizes(revision)
    # The default branch needs no name; a commit that nothing points to needs its own.
    refs = sorted(revision.refs)
    name = HubName(repo.repo_id, None if "main" in refs else (refs or [revision.commit_hash])[0])
    if _writes_text(revision.snapshot_path):
        own = {path: size for path, size in files.items() if not path.lower().endswith(".gguf")}
        yield _model(str(name), "safetensors", revision, own, _is_complete(revision.snapshot_path, own))
    models = find_models(files)
    for model in models:
        own = {path: files[path] for path in model.files}
        yield _model(str(name_of(name, model, models)), "GGUF", revision, own, model.is_complete)


def _model(name: str, kind: str, revision: CachedRevisionInfo, files: Mapping[str, int], complete: bool) -> CachedModel:
    read = [one.blob_last_accessed for one in revision.files if path_of(one, revision) in files]
    last = datetime.fromtimestamp(max(read, default=0.0), timezone.utc)
    label = ", ".join(sorted(revision.refs)) or revision.commit_hash
    return CachedModel(name, kind, label, revision.commit_hash, sum(files.values()), last, complete)


def _writes_text(folder: Path) -> bool:
    """Whether config.json names a model that writes text and is not packed in HuggingFace's way."""
    try:
        config = json.loads((folder / CONFIG).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(config, dict) or "model_type" not in config or config.get("quantization_config") is not None:
        return False
    kinds = config.get("architectures") or []
    return isinstance(kinds, list) and any(str(kind).endswith(_WRITERS) for kind in kinds)


def _is_complete(folder: Path, files: Mapping[str, int]) -> bool:
    try:
        return all(path in files for path in weight_files(folder, files))
    except FormatError:
        return False
