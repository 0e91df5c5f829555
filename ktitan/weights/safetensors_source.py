"""Safetensors files: one, or the shards that an index names.

The `safetensors` library validates each header (sizes, overlaps, holes, duplicate keys) before any of it is used here;
it offers no offsets, so they are read from the validated header. Format: https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from safetensors import SafetensorError, safe_open

from ktitan.errors import Fault, FormatError, WeightError
from ktitan.weights.files import FileStamp, is_file, names_in, open_regular, read_each, stamp_of
from ktitan.weights.json_files import read_json
from ktitan.weights.source import FileSource, TensorInfo

__all__ = ["INDEX_NAME", "SafetensorsSource", "open_safetensors"]

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".bin.index.json")
PICKLED_REMEDY = "pickles can run code and are not read; save it as safetensors with transformers' save_pretrained"

# A header takes about thirty times its size when it is read; models of 100 thousand tensors have some 10 MiB.
MAX_HEADER_BYTES = 32 << 20
MAX_INDEX_BYTES = 128 << 20

Header = tuple[dict[str, TensorInfo], FileStamp]


class SafetensorsSource(FileSource):
    """Tensors of one checkpoint, over one file or several."""

    kind = "safetensors"


def open_safetensors(path: str | Path) -> SafetensorsSource:
    """Open a `.safetensors` file, or a folder that holds a checkpoint.

    Raises:
        WeightError: a shard is missing, leaves the folder, lacks a tensor that the index promises, or holds one twice.
        FormatError: files are not valid safetensors.
        IoError: a file or folder cannot be read.
    """
    path = Path(path)
    if is_file(path):
        header, stamp = read_header(path)
        return SafetensorsSource(str(path), header, {str(path): stamp})
    shards, promised = _shards(path)
    headers = read_each([path / shard for shard in shards], read_header)
    tensors: dict[str, TensorInfo] = {}
    faults: list[Fault] = []
    twice: set[str] = set()
    for shard, (header, _) in zip(shards, headers, strict=True):
        for name, info in header.items():
            if name in tensors:
                faults.append(Fault(f"stands in {tensors[name].file} and in {shard}", name, "remove one of the files"))
                twice.add(name)
            tensors[name] = info
    faults += _broken_promises({n: shard for n, shard in promised.items() if n not in twice}, tensors)
    if faults:
        raise WeightError.from_faults(faults, f"{len(faults)} faults in the shards of {path}")
    stamps = {str(path / shard): stamp for shard, (_, stamp) in zip(shards, headers, strict=True)}
    return SafetensorsSource(str(path), tensors, stamps)


def read_header(path: Path) -> Header:
    """The tensors of one file, after the library has validated it, and the file's stamp.

    Raises:
        FormatError: the file is not valid safetensors.
        WeightError: there is no regular file.
        IoError: it cannot be opened or read.
    """
    header, raw, stamp = checked_header(path)
    header.pop("__metadata__", None)
    return {name: _tensor(name, entry, str(path), len(raw)) for name, entry in header.items()}, stamp


def checked_header(path: Path) -> tuple[dict[str, Any], bytes, FileStamp]:
    """The header of one file as it stands there, all bytes before the data, and the file's stamp; raises as above."""
    stamp_of(path)  # the library would wait for ever at a pipe
    try:
        with open_regular(path) as file:
            stamp = FileStamp.of(os.fstat(file.fileno()))
            first = file.read(8)
            length = int.from_bytes(first, "little")
            if MAX_HEADER_BYTES < length <= stamp.size:
                message = f"its header takes {length} bytes, at most {MAX_HEADER_BYTES} are read"
                raise FormatError(message, str(path), "save the model anew, in several files")
            with safe_open(path, "pt"):
                raw = first + file.read(length)
                header: dict[str, Any] = json.loads(raw[8:], object_pairs_hook=_unique)
    except _KeyTwice as error:
        raise FormatError(f"{error} stands twice in the header", str(path), "copy or download it again") from error
    except SafetensorError as error:
        raise FormatError(f"not a valid safetensors file: {error}", str(path), "copy or download it again") from error
    return header, raw, stamp


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
    if is_file(index):
        promised = _read_index(index)
        return sorted(set(promised.values())), promised
    if is_file(folder / SINGLE_NAME):
        return [SINGLE_NAME], {}
    found = names_in(folder, ".safetensors")
    if not found:
        raise WeightError("no weights found", str(folder), _remedy_without_weights(folder))
    return found, {}


def _read_index(index: Path) -> dict[str, str]:
    promised = read_json(index, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(promised, dict) or not all(isinstance(name, str) for name in promised.values()):
        raise FormatError("not a valid index: weight_map is not a table of file names", str(index), "download it again")
    faults = [fault for shard in sorted(set(promised.values())) for fault in _shard_faults(index, shard)]
    if faults:
        raise WeightError.from_faults(faults, f"{len(faults)} shards of {index} cannot be used")
    return promised


def _shard_faults(index: Path, shard: str) -> list[Fault]:
    """What is wrong with the name of a shard, or with the file; a link may lead anywhere, as in the hub's cache."""
    if PurePosixPath(shard).name != shard or shard in ("", ".", "..") or len(shard) > 255 or not shard.isprintable():
        message = f"names {shard[:80]!r}, which is not a plain file name"
        return [Fault(message, str(index), "do not trust this model")]
    if shard.endswith(PICKLED):
        return [Fault(f"shard {shard} is pickled", str(index), PICKLED_REMEDY)]
    if not is_file(index.parent / shard):
        return [Fault(f"shard {shard} is missing", str(index), "download it, or the whole model again")]
    return []


def _broken_promises(promised: Mapping[str, str], tensors: Mapping[str, TensorInfo]) -> list[Fault]:
    return [
        Fault(f"the index places it in {shard}, which lacks it", name, "download the shard again")
        for name, shard in promised.items()
        if name not in tensors or Path(tensors[name].file).name != shard
    ]


def _remedy_without_weights(folder: Path) -> str:
    if names_in(folder, *PICKLED):
        return PICKLED_REMEDY
    if names_in(folder, ".gguf"):
        return "the folder holds GGUF files; give one of them, or the folder as gguf_path"
    return "give a folder with model.safetensors or model.safetensors.index.json, or a .gguf file"
