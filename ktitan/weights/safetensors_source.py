"""Safetensors files: one, or the shards that an index names.

The `safetensors` library validates each header (sizes, overlaps, holes, duplicate keys) before any of it is used here;
it offers no offsets, so they are read from the validated header. Format: https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from safetensors import SafetensorError, safe_open

from ktitan.errors import Fault, FormatError, WeightError
from ktitan.weights.source import FileSource, TensorInfo

__all__ = ["INDEX_NAME", "SafetensorsSource", "open_safetensors"]

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
# Of a file, on every file system that matters.
LONGEST_NAME = 255
# A header takes about thirty times its size when it is read; models of 100 thousand tensors have some 10 MiB.
MAX_HEADER_BYTES = 32 << 20
MAX_INDEX_BYTES = 128 << 20


class SafetensorsSource(FileSource):
    """Tensors of one checkpoint, over one file or several."""

    kind = "safetensors"


def open_safetensors(path: str | Path) -> SafetensorsSource:
    """Open a `.safetensors` file, or a folder that holds a checkpoint.

    Raises:
        WeightError: a shard is missing, leaves the folder, lacks a tensor that the index promises, or holds one twice.
        FormatError: a file is not valid safetensors.
    """
    path = Path(path)
    if path.is_file():
        return SafetensorsSource(str(path), read_header(path))
    shards, promised = _shards(path)
    tensors: dict[str, TensorInfo] = {}
    faults: list[Fault] = []
    for shard in shards:
        for name, info in read_header(path / shard).items():
            if name in tensors:
                faults.append(Fault(f"stands in {tensors[name].file} and in {shard}", name, "remove one of the files"))
            tensors[name] = info
    faults += _broken_promises(promised, tensors)
    if faults:
        raise WeightError.from_faults(faults, f"{len(faults)} faults in the shards of {path}")
    return SafetensorsSource(str(path), tensors)


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of one file, after the library has validated it.

    Raises:
        FormatError: the file is not valid safetensors.
        WeightError: it cannot be opened.
    """
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if MAX_HEADER_BYTES < length <= path.stat().st_size:
                message = f"its header takes {length} bytes, at most {MAX_HEADER_BYTES} are read"
                raise FormatError(message, str(path), "save the model anew, in several files")
            with safe_open(path, "pt"):
                header = json.loads(file.read(length), object_pairs_hook=_unique)
    except _KeyTwice as error:
        raise FormatError(f"{error} stands twice in the header", str(path), "copy or download it again") from error
    except SafetensorError as error:
        raise FormatError(f"not a valid safetensors file: {error}", str(path), "copy or download it again") from error
    except OSError as error:
        raise WeightError(f"cannot open: {error.strerror or error}", str(path), "check path and permissions") from error
    header.pop("__metadata__", None)
    return {name: _tensor(name, entry, str(path), 8 + length) for name, entry in header.items()}


class _KeyTwice(ValueError):
    """A JSON object has a key twice, which the library lets pass when both entries agree."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise _KeyTwice(repr(Counter(name for name, _ in pairs).most_common(1)[0][0]))
    return table


def _tensor(name: str, entry: Mapping[str, Any], file: str, data_start: int) -> TensorInfo:
    begin, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    return TensorInfo(name, shape, str(entry["dtype"]).lower(), file, data_start + begin, end - begin)


def _shards(folder: Path) -> tuple[list[str], dict[str, str]]:
    """File names of a checkpoint in `folder`, and which tensor the index promises in which file."""
    index = folder / INDEX_NAME
    if index.is_file():
        promised = _read_index(index)
        return sorted(set(promised.values())), promised
    if (folder / SINGLE_NAME).is_file():
        return [SINGLE_NAME], {}
    found = sorted(file.name for file in folder.glob("*.safetensors"))
    if not found:
        raise WeightError("no weights found", str(folder), _remedy_without_weights(folder))
    return found, {}


def _read_index(index: Path) -> dict[str, str]:
    if index.stat().st_size > MAX_INDEX_BYTES:
        raise FormatError(f"an index of more than {MAX_INDEX_BYTES} bytes", str(index), "download it again")
    try:
        promised = json.loads(index.read_text("utf-8"))["weight_map"]
        if not isinstance(promised, dict) or not all(isinstance(name, str) for name in promised.values()):
            raise TypeError("weight_map is not a table of file names")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(f"not a valid index: {error}", str(index), "download it again") from error
    faults = []
    for shard in sorted(set(promised.values())):
        if not _is_plain(shard):
            shown = shard if len(shard) <= LONGEST_NAME else f"{shard[:LONGEST_NAME]}..."
            faults.append(
                Fault(f"names {shown!r}, which is not a plain file name", str(index), "do not trust this model")
            )
        elif not (index.parent / shard).is_file():
            faults.append(Fault(f"shard {shard} is missing", str(index), "download it, or the whole model again"))
    if faults:
        raise WeightError.from_faults(faults, f"{len(faults)} shards of {index} cannot be used")
    return promised


def _is_plain(shard: str) -> bool:
    """Whether a name stays in the folder, and is one that a file can have."""
    return (
        PurePosixPath(shard).name == shard not in ("", ".", "..") and shard.isprintable() and len(shard) <= LONGEST_NAME
    )


def _broken_promises(promised: Mapping[str, str], tensors: Mapping[str, TensorInfo]) -> list[Fault]:
    return [
        Fault(f"the index places it in {shard}, which lacks it", name, "download the shard again")
        for name, shard in promised.items()
        if name not in tensors or Path(tensors[name].file).name != shard
    ]


def _remedy_without_weights(folder: Path) -> str:
    if any(folder.glob("*.bin")) or any(folder.glob("*.pth")):
        return "pickled checkpoints are not read; save the model as safetensors with transformers' save_pretrained"
    if any(folder.glob("*.gguf")):
        return "the folder holds GGUF files; give one of them, or the folder as gguf_path"
    return "give a folder with model.safetensors or model.safetensors.index.json, or a .gguf file"
