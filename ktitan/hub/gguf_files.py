"""Which GGUF models a list of files holds, and which of them a quant tag means.

Split files are named NAME-00001-of-00003.gguf (llama.cpp, tools/gguf-split); publishers put the quantisation last in
the name (`model-Q4_K_M.gguf`) or in a folder's (`Q4_K_M/model-00001-of-00002.gguf`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from ktitan.errors import UnsupportedError, WeightError
from ktitan.hub.names import HubName, parse_name
from ktitan.tiers import format_bytes

__all__ = ["GgufModel", "find_models", "name_of", "pick_model"]

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})", re.IGNORECASE)
_TAG = re.compile(r"(?:^|[-._])(?P<tag>(?:ud-|i1-)?(?:i?q\d|tq\d|mxfp\d|nvfp\d|bf16|fp?16|fp?32)\w*)$", re.IGNORECASE)
# Parts of a model, or measurements of one, that are not language models.
_OTHERS = ("mmproj", "imatrix")


@dataclass(frozen=True)
class GgufModel:
    """One model: a file, or the shards of one.

    Attributes:
        stem: path without `.gguf` and shard numbers.
        files: paths in order of the shards.
        shards: how many there should be.
        size_bytes: of the files that are there.
    """

    stem: str
    files: tuple[str, ...]
    shards: int
    size_bytes: int

    @property
    def tag(self) -> str:
        """The quantisation that the name ends with, or the whole name when it ends with none."""
        path = PurePosixPath(self.stem)
        found = _TAG.search(path.name) or _TAG.fullmatch(path.parent.name)
        return found["tag"] if found else path.name

    @property
    def is_complete(self) -> bool:
        """Whether every shard is there."""
        return len(self.files) == self.shards

    def __str__(self) -> str:
        return f"{self.tag} ({format_bytes(self.size_bytes)})"


def find_models(files: Mapping[str, int]) -> list[GgufModel]:
    """The GGUF models among `files` (bytes by path), smallest first."""
    found: dict[tuple[str, int], list[str]] = {}
    for path in sorted(files):
        stem, dot, ending = path.rpartition(".")
        name = PurePosixPath(path).name.lower()
        if dot and ending.lower() == "gguf" and not any(word in name for word in _OTHERS):
            shard = _SHARD.fullmatch(stem)
            key = (shard["stem"], int(shard["count"])) if shard else (stem, 1)
            found.setdefault(key, []).append(path)
    models = [
        GgufModel(stem, tuple(paths), count, sum(files[path] for path in paths))
        for (stem, count), paths in found.items()
    ]
    return sorted(models, key=lambda model: (model.size_bytes, model.stem))


def pick_model(name: HubName, models: Sequence[GgufModel], partial: bool = False) -> GgufModel:
    """The model that `name` means: by its file, by its tag, or the only one; `partial` takes one that lacks shards.

    Raises:
        WeightError: there is none of that name, or a shard of it is missing.
        UnsupportedError: there are several.
    """
    if name.file is not None:
        fitting = [model for model in models if name.file in model.files]
    elif name.quant is not None:
        fitting = _tagged(name.quant.lower(), models)
    else:
        fitting = list(models)
    if len(fitting) == 1:
        return fitting[0] if partial else _whole(name, fitting[0])
    choices = ", ".join(map(str, fitting or models)) or "none"
    if not fitting:
        wanted = name.file or name.quant or "GGUF"
        raise WeightError(f"no GGUF model {wanted!r} is in it; there are: {choices}", name.repo, _example(name, models))
    raise UnsupportedError(f"it holds {len(fitting)} GGUF models: {choices}", str(name), _example(name, fitting))


def _tagged(wanted: str, models: Sequence[GgufModel]) -> list[GgufModel]:
    """Models of that very tag; failing that, those whose name or folder ends with it."""
    exact = [model for model in models if model.tag.lower() == wanted]
    ends = re.compile(rf"(^|.*[-._/]){re.escape(wanted)}")
    return exact or [
        model
        for model in models
        if ends.fullmatch(model.stem.lower()) or PurePosixPath(model.stem).parent.name.lower() == wanted
    ]


def _whole(name: HubName, model: GgufModel) -> GgufModel:
    if model.is_complete:
        return model
    raise WeightError(
        f"{model.stem} has {len(model.files)} of its {model.shards} shards",
        str(name),
        "choose another model, or tell its publisher",
    )


def name_of(name: HubName, model: GgufModel, models: Sequence[GgufModel]) -> HubName:
    """How `model`, one of the `models` of a repository, is written: by its tag, or by its file where tags repeat."""
    same = [one for one in models if one.tag.lower() == model.tag.lower()]
    by_tag = HubName(name.repo, name.revision, model.tag)
    if len(same) == 1 and parse_name(str(by_tag)) == by_tag:
        return by_tag
    return HubName(name.repo, name.revision, None, model.files[0])


def _example(name: HubName, models: Sequence[GgufModel]) -> str:
    if not models:
        return "choose another repository"
    return f"name one, e.g. {name_of(name, models[0], models)}"
