"""GGUF files as a weight source: one file, or the shards of a split model.

Shard names and the `split.*` keys: https://github.com/ggml-org/llama.cpp, tools/gguf-split.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ktitan.errors import Fault, FormatError, WeightError
from ktitan.formats import find_format
from ktitan.weights.files import FileStamp, is_file, is_folder, names_in, read_each
from ktitan.weights.gguf_header import GgufHeader, read_header
from ktitan.weights.source import FileSource, TensorInfo

__all__ = ["GgufSource", "gguf_of_headers", "open_gguf"]

ARCHITECTURE_KEY = "general.architecture"
SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


class GgufSource(FileSource):
    """The tensors of one GGUF model.

    Attributes:
        metadata: every key of the (first) file, as Python values.
        architecture: what `general.architecture` says, e.g. "llama" or "deepseek2".
        files: the files, in the order of the shards.
    """

    kind = "gguf"

    def __init__(
        self,
        path: str,
        metadata: Mapping[str, Any],
        tensors: Mapping[str, TensorInfo],
        stamps: Mapping[str, FileStamp] | None = None,
    ) -> None:
        super().__init__(path, tensors, stamps)
        self.metadata: Mapping[str, Any] = MappingProxyType(dict(metadata))
        self.files = tuple(dict.fromkeys(one.file for one in tensors.values()))
        architecture = metadata.get(ARCHITECTURE_KEY)
        if not isinstance(architecture, str):
            raise FormatError(f"the metadata has no {ARCHITECTURE_KEY}", path, "give a model's file, converted anew")
        self.architecture: str = architecture

    @property
    def is_quantised(self) -> bool:
        """Whether any tensor is stored in blocks."""
        return any(find_format(info.format, info.name).torch_dtype is None for info in self.tensors.values())


def open_gguf(path: str | Path) -> GgufSource:
    """Open a GGUF model by its headers; no tensor is read.

    Args:
        path: a file, any shard of a split model (the others are found by name beside it; a symlink's own name counts,
            not its target's), or a folder that holds exactly one model.

    Raises:
        WeightError: nothing is there, a shard is missing, or tensors are.
        FormatError: a file is damaged, shards do not belong together, or the folder holds several models.
        IoError: a file cannot be read.
    """
    given = Path(path)
    file = _only_model(given) if is_folder(given) else given
    header = read_header(file)
    count = _split_number(header, "split.count", 1)
    return gguf_of_headers(str(path), [header] if count <= 1 else _read_shards(file, header, count))


def gguf_of_headers(path: str, headers: Sequence[GgufHeader]) -> GgufSource:
    """The source at `path` by the headers of its files, in order of the shards.

    Raises:
        FormatError: shards do not belong together.
        WeightError: tensors are missing.
    """
    if len(headers) > 1 or _split_number(headers[0], "split.count", 1) > 1:
        _check_shards(headers)
    stamps = {one.file: one.stamp for one in headers if one.stamp is not None}
    return GgufSource(path, headers[0].metadata, _merged(headers), stamps)


def _only_model(folder: Path) -> Path:
    """One file of the only model in `folder`."""
    models: dict[str, Path] = {}
    for file in (folder / name for name in names_in(folder, ".gguf")):
        shard = SHARD_NAME.fullmatch(file.name)
        models.setdefault(f"{shard['stem']} (of {shard['count']})" if shard else file.name, file)
    if not models:
        raise WeightError("the folder holds no .gguf file", str(folder), "check the path")
    if len(models) > 1:
        names = ", ".join(file.name for file in models.values())
        raise FormatError(
            f"the folder holds {len(models)} models: {names}", str(folder), "give the path of the file that you mean"
        )
    return next(iter(models.values()))


def _read_shards(file: Path, known: GgufHeader, count: int) -> list[GgufHeader]:
    """The headers of all shards in order; `known` is that of `file`."""
    shard = SHARD_NAME.fullmatch(file.name)
    if shard is None or int(shard["count"]) != count:
        raise FormatError(
            f"is one of {count} shards by its header, but is not named like one",
            str(file),
            f"name the files NAME-00001-of-{count:05d}.gguf and so on, as they were published",
        )
    paths = [file.with_name(f"{shard['stem']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    absent = [path for path in paths if not is_file(path)]
    if absent:
        faults = [Fault("shard is missing", str(path), "download it into the same folder") for path in absent]
        raise WeightError.from_faults(faults, f"{len(absent)} of {count} shards are missing")
    return read_each(paths, lambda path: known if path == file else read_header(path))


def _check_shards(headers: Sequence[GgufHeader]) -> None:
    for index, header in enumerate(headers):
        _check_shard(header, index, len(headers))
    total = _split_number(headers[0], "split.tensors.count", 0)
    found = sum(len(header.tensors) for header in headers)
    if total and total != found:
        raise WeightError(
            f"the shards hold {found} tensors, the first one says {total}", headers[0].file, "download the shards again"
        )


def _check_shard(header: GgufHeader, index: int, count: int) -> None:
    number = _split_number(header, "split.no", -1)
    stated = _split_number(header, "split.count", 0)
    if (number, stated) != (index, count):
        raise FormatError(
            f"is named as shard {index + 1} of {count}, its header says {number + 1} of {stated}",
            header.file,
            "the file carries another shard's name or belongs to another model; download the shards again",
        )


def _split_number(header: GgufHeader, key: str, default: int) -> int:
    value = header.metadata.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise FormatError(f"metadata key {key!r} is not a whole number", header.file, "download the file again")
    return value


def _merged(headers: Sequence[GgufHeader]) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for header in headers:
        for name, info in header.tensors.items():
            if name in tensors:
                raise FormatError(
                    f"tensor {name!r} is also in {tensors[name].file}", header.file, "the shards are of two models"
                )
            tensors[name] = info
    return tensors
