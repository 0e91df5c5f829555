"""From what a user gives as `weights` to sources."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from ktitan.errors import WeightError
from ktitan.weights.files import is_file, is_folder, names_in, stamp_of
from ktitan.weights.gguf_source import open_gguf
from ktitan.weights.live_source import LiveSource
from ktitan.weights.native_format import is_native
from ktitan.weights.native_source import open_native
from ktitan.weights.safetensors_source import INDEX_NAME, PICKLED, PICKLED_REMEDY, open_safetensors
from ktitan.weights.source import WeightSource

__all__ = ["Weights", "open_source", "open_sources"]

Weights = str | Path | Sequence[str | Path] | None


def open_sources(weights: Weights, model: nn.Module) -> list[WeightSource]:
    """Open everything in `weights`; None means the model itself, or where its config was loaded from.

    Raises:
        WeightError: nothing there, or nothing to be found without `weights`.
        FormatError: a file is broken.
    """
    if weights is not None:
        paths = list(weights) if isinstance(weights, Sequence) and not isinstance(weights, str) else [weights]
        return [open_source(path) for path in paths]
    if any(tensor.device.type != "meta" for tensor in model.parameters()):
        return [LiveSource(model)]
    origin = getattr(getattr(model, "config", None), "_name_or_path", "")
    if not origin:
        raise WeightError(
            "the model is on meta and nothing says where its weights are",
            type(model).__name__,
            "pass weights=, the folder or file that holds them",
        )
    return [open_source(origin)]


def open_source(path: str | Path) -> WeightSource:
    """Open one source: a `.gguf` file, a `.safetensors` file, a folder of either, or a native model.

    Raises:
        WeightError: the path does not exist or holds no weights.
        FormatError: a file is broken.
        UnsupportedError: a native model of another version or layout.
        IoError: a file or folder cannot be read.
    """
    if not isinstance(path, str | Path) or not str(path):
        raise WeightError(f"{path!r} is not a path", "weights", "give a folder, a .safetensors or a .gguf file")
    path = Path(path)
    if is_folder(path):
        if is_native(path):
            return open_native(path)
        is_gguf = not _has_safetensors(path) and names_in(path, ".gguf")
        return open_gguf(path) if is_gguf else open_safetensors(path)
    stamp_of(path)
    if path.name.endswith(".safetensors.index.json"):
        return open_safetensors(path.parent)
    if path.name.endswith(PICKLED):
        raise WeightError("a pickled checkpoint", str(path), PICKLED_REMEDY)
    if path.suffix == ".gguf":
        return open_gguf(path)
    if path.suffix != ".safetensors" and not path.is_symlink():
        raise WeightError("not a weights file", str(path), "give a folder, a .safetensors or a .gguf file")
    return open_safetensors(path)


def _has_safetensors(folder: Path) -> bool:
    return is_file(folder / INDEX_NAME) or bool(names_in(folder, ".safetensors"))
