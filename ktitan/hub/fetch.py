"""From a hub name to files in huggingface_hub's cache: what a model needs, and nothing twice.

Of a repository in HuggingFace's format come config, tokenizer, chat template and the safetensors that the index names;
never pickles, nor the same weights in another format. Of GGUF models comes one, with all its shards.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ktitan.errors import Fault, FormatError, UnsupportedError, WeightError
from ktitan.hub.download import bring
from ktitan.hub.gguf_files import GgufModel, find_models, pick_model
from ktitan.hub.listing import Listing, list_files
from ktitan.hub.names import HubName

__all__ = ["CONFIG", "INDEX", "Fetched", "fetch", "weight_files"]

CONFIG, INDEX, SINGLE = "config.json", "model.safetensors.index.json", "model.safetensors"
_SMALL = ("*.json", "*.model", "*.jinja", "*.txt")
_TEMPLATES = "additional_chat_templates/*.jinja"
# The same weights under their makers' names, and what is laid over a model.
_OTHER_WEIGHTS = ("consolidated*", "adapter_*")
_ASK_HUB = "run it once with the hub in reach (and HF_HUB_OFFLINE unset)"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True)
class Fetched:
    """A model in the cache.

    Attributes:
        name: as it was asked for.
        folder: the snapshot's folder.
        commit: the commit's hash.
        files: bytes by path, of what belongs to the model; with `has_weights` all of it is in `folder`.
        gguf: the (first) file of a GGUF model, or None for HuggingFace's format.
        has_weights: the weights are in `folder`, too.
        downloaded_bytes: how much of it had to be downloaded now.
    """

    name: HubName
    folder: Path
    commit: str
    files: dict[str, int]
    gguf: str | None
    has_weights: bool
    downloaded_bytes: int = 0


def fetch(name: HubName, weights: bool = True, packed: bool = False) -> Fetched:
    """Bring a model into the cache, as far as it is not there.

    Args:
        name: which one.
        weights: False brings only config and tokenizer, of a GGUF model nothing.
        packed: a checkpoint that is quantised in HuggingFace's way will do, since its weights are not wanted.

    Raises:
        WeightError: the hub or the cache does not have it, or not all of it.
        UnsupportedError: it holds only pickles, a packed checkpoint, or several GGUF models.
        BudgetError: the drive has no room for it.
        FormatError, IoError: what the hub sends cannot be used; the cache cannot be written.
    """
    listing = list_files(name)
    models = find_models(listing.files)
    if name.file or name.quant or (models and not _safetensors(listing.files)):
        return _fetch_gguf(listing, _pick(listing, models), weights)
    _refuse_without_weights(listing)
    return _fetch_folder(listing, weights, packed)


def _pick(listing: Listing, models: list[GgufModel]) -> GgufModel:
    try:
        return pick_model(listing.name, models)
    except WeightError as error:
        if listing.from_hub:
            raise
        raise WeightError(f"{error.message} (the cache was looked at, not the hub)", error.where, _ASK_HUB) from error


def _fetch_gguf(listing: Listing, model: GgufModel, weights: bool) -> Fetched:
    files = {path: listing.files[path] for path in model.files}
    cached = all(map(listing.is_cached, files))
    if not weights and not cached:
        return Fetched(listing.name, listing.folder or Path(), listing.commit, files, model.files[0], False)
    folder, downloaded = bring(listing, files)
    return Fetched(listing.name, folder, listing.commit, files, model.files[0], True, downloaded)


def _fetch_folder(listing: Listing, weights: bool, packed: bool) -> Fetched:
    """Config and tokenizer first: they say which weights there are, and whether ktitan reads them at all."""
    small = [path for path in listing.files if _is_small(path) and (weights or path != INDEX)]
    folder, downloaded = bring(listing, small)
    if not packed:
        _refuse_packed(folder, listing.name)
    if not weights:
        there = _weights_in(folder)
        files = {path: listing.files[path] for path in (*small, *(there or ())) if path in listing.files}
        return Fetched(listing.name, folder, listing.commit, files, None, there is not None, downloaded)
    wanted = weight_files(folder, listing.files)
    missing = [path for path in wanted if path not in listing.files]
    if missing:
        where = "the repository" if listing.from_hub else "the cache, and the hub was not asked"
        remedy = "tell its publisher" if listing.from_hub else _ASK_HUB
        faults = [Fault(f"{path} is not in {where}", str(listing.name), remedy) for path in missing]
        raise WeightError.from_faults(faults, f"{len(faults)} weight files of {listing.name} are missing")
    folder, more = bring(listing, wanted)
    files = {path: listing.files[path] for path in (*small, *wanted)}
    return Fetched(listing.name, folder, listing.commit, files, None, True, downloaded + more)


def weight_files(folder: Path, files: Iterable[str]) -> list[str]:
    """The safetensors of a model: those that the index in `folder` names, else the one file, else all of `files`.

    Raises:
        FormatError: the index is not one.
    """
    if not (folder / INDEX).is_file():
        found = _safetensors(files)
        return [SINGLE] if SINGLE in found or not found else found
    try:
        named = json.loads((folder / INDEX).read_text("utf-8"))["weight_map"].values()
        return sorted({str(path) for path in named})
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"not a valid index: {error}", str(folder / INDEX), "tell its publisher") from error


def _weights_in(folder: Path) -> list[str] | None:
    """The weight files of a snapshot, or None when one is missing."""
    wanted = weight_files(folder, [path.name for path in folder.glob("*.safetensors")])
    return wanted if all((folder / path).is_file() for path in wanted) else None


def _safetensors(files: Iterable[str]) -> list[str]:
    return sorted(path for path in files if _is_top(path, ("*.safetensors",)) and not _is_top(path, _OTHER_WEIGHTS))


def _is_small(path: str) -> bool:
    return _is_top(path, _SMALL) or fnmatch.fnmatch(path, _TEMPLATES)


def _is_top(path: str, patterns: Iterable[str]) -> bool:
    return "/" not in path and any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def _refuse_without_weights(listing: Listing) -> None:
    """Say what a repository is when it is no model of ours; a config alone is enough when only the cache is seen."""
    files = listing.files
    where = str(listing.name)
    pickles = [path for path in files if _is_top(path, _PICKLES)]
    if CONFIG not in files and not listing.from_hub:
        raise WeightError(
            f"the cache holds no {CONFIG} and no .gguf file of it, and the hub was not asked", where, _ASK_HUB
        )
    if CONFIG not in files:
        what = "a LoRA adapter" if "adapter_config.json" in files else "no model in a format that ktitan reads"
        raise WeightError(
            f"it holds {what}: no {CONFIG} and no .gguf file", where, "give the id of a causal language model"
        )
    if listing.from_hub and not _safetensors(files):
        what = "only pickled weights (.bin), which can run code when they are read" if pickles else "no weights"
        raise UnsupportedError(
            f"it holds {what}",
            where,
            "look for a safetensors or GGUF version, e.g. in its pull requests (org/name@refs/pr/1), or save one "
            "with transformers' save_pretrained",
        )


def _refuse_packed(folder: Path, name: HubName) -> None:
    """What would be refused when it is loaded is refused before hundreds of gigabytes are downloaded."""
    try:
        config: Any = json.loads((folder / CONFIG).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(f"{CONFIG} cannot be read: {error}", str(name), "tell its publisher") from error
    packed = config.get("quantization_config") if isinstance(config, dict) else None
    if packed is not None:
        method = packed.get("quant_method", "?") if isinstance(packed, dict) else "?"
        raise UnsupportedError(
            f"packed checkpoints (quant_method {method!r}) are not read in this version; no weights were downloaded",
            str(name),
            "use an unpacked checkpoint or a GGUF of the model",
        )
