"""Titan Native, version 1: names, limits, and the JSON of index and headers. docs/native.md describes the bytes.

A directory of safetensors files whose U8 tensors are records (all weights of a module, or one expert's), and an index
that is renamed in last: without it nothing counts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from ktitan.weights.files import is_file, names_in

__all__ = [
    "ALIGN_BYTES",
    "ENDING",
    "FORMAT",
    "INDEX_NAME",
    "JOURNAL_NAME",
    "LAYOUT",
    "MAX_INDEX_BYTES",
    "MOST_STRIPES",
    "PAGE_BYTES",
    "VERSION",
    "FileEntry",
    "Index",
    "Part",
    "RecordEntry",
    "digest",
    "file_name",
    "header_bytes",
    "index_text",
    "is_native",
    "split_record",
    "stored_digest",
    "stripe_name",
]

FORMAT = "titan-native"
VERSION = 1
# Rows as their named storage format has them. Layouts of a kernel's own will have an id and an instruction set.
LAYOUT = "rows"

INDEX_NAME = "model.ktitan.json"
# What a conversion that has not ended is of.
JOURNAL_NAME = "convert.ktitan.json"
ENDING = ".titan.safetensors"

# Where data, records and pieces begin; reads past the page cache are whole pages.
PAGE_BYTES = 4096
# Where matrices begin within a record: a cache line.
ALIGN_BYTES = 64
MAX_INDEX_BYTES = 32 << 20
MOST_STRIPES = 64

_DIGEST_START = '{"sha256": "'
_NO_DIGEST = "0" * 64
_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}\.titan\.safetensors"
_FILE = rf"^(stripe-[1-9][0-9]?/)?{_NAME}$"
_RECORD = re.compile(r"(?P<module>.*?)(?:\[(?P<entry>\d{1,6})\])?")

Count = Annotated[int, Field(strict=True, ge=0, lt=1 << 60)]
Positive = Annotated[int, Field(strict=True, gt=0, lt=1 << 60)]
Hex64 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Text = Annotated[str, Field(strict=True, max_length=1000)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FileEntry(_Strict):
    """One data file: its name within the directory, its size, and the SHA-256 of all before its data."""

    name: Annotated[str, Field(pattern=_FILE)]
    bytes: Positive
    header_sha256: Hex64


class Index(_Strict):
    """`model.ktitan.json`, without its own checksum.

    Attributes:
        stripes: drives that records are cut over; 1 is the directory alone.
        source_sha256: of what it was converted from.
        made_by: versions of the programs.
    """

    format: Text
    version: Positive
    layout: Text
    stripes: Annotated[int, Field(strict=True, ge=1, le=MOST_STRIPES)]
    source: Text
    source_sha256: Hex64
    made_by: dict[str, Text]
    files: Annotated[list[FileEntry], Field(min_length=1, max_length=100_000)]


class Part(_Strict):
    """Rows of one tensor within a record.

    Attributes:
        tensor: the module's name for it, such as "weight".
        shape: of the whole tensor (of one expert's share of it, where the record is an expert).
        format: how its rows are stored.
        first_row, rows: which rows, of the tensor seen as [prod(shape[:-1]), shape[-1]].
        at: where they begin in the record, a multiple of 64.
    """

    tensor: Annotated[str, Field(strict=True, min_length=1, max_length=500)]
    shape: Annotated[list[Count], Field(max_length=8)]
    format: Annotated[str, Field(strict=True, max_length=40)]
    first_row: Count
    rows: Positive
    at: Count


class RecordEntry(_Strict):
    """What a header says of the piece of a record in its file.

    Attributes:
        layout: number of the record's list of parts.
        start: the piece's first byte within the record; 0 where the record is in one piece.
        crc32c: of the piece, eight hexadecimal digits.
    """

    layout: Count
    start: Count
    crc32c: Annotated[str, Field(pattern=r"^[0-9a-f]{8}$")]


def is_native(folder: Path) -> bool:
    """Whether a folder is a native model, or what a conversion that did not end left of one.

    Raises:
        IoError: it cannot be looked at.
    """
    return is_file(folder / INDEX_NAME) or is_file(folder / JOURNAL_NAME) or bool(names_in(folder, ENDING))


def split_record(name: str) -> tuple[str, int | None]:
    """Module and expert's number out of a record's name: "model.layers.3.mlp.experts[17]"."""
    found = _RECORD.fullmatch(name)
    if found is None or found["entry"] is None:
        return name, None
    return found["module"], int(found["entry"])


def stripe_name(drive: int) -> str:
    """The folder of a drive within the directory; drive 0 is the directory itself."""
    return f"stripe-{drive}" if drive else ""


def file_name(group: str, drive: int) -> str:
    """Name of a data file within the directory."""
    return f"{stripe_name(drive)}/{group}{ENDING}".lstrip("/")


def digest(data: bytes) -> str:
    """SHA-256 as hexadecimal digits. Headers are small, and Python has it without our library."""
    return hashlib.sha256(data).hexdigest()


def index_text(fields: Mapping[str, Any]) -> bytes:
    """The index as it is stored: its first value is the SHA-256 of the text with zeros in that place."""
    listed = json.dumps(dict(fields), ensure_ascii=True, indent=1)
    text = f'{_DIGEST_START}{_NO_DIGEST}",{listed[1:]}\n'.encode()
    return text.replace(_NO_DIGEST.encode(), digest(text).encode(), 1)


def stored_digest(text: bytes) -> tuple[str, str]:
    """The SHA-256 that an index states of itself ("" when it states none), and what it is."""
    first = len(_DIGEST_START)
    if not text.startswith(_DIGEST_START.encode()):
        return "", digest(text)
    found = digest(text[:first] + _NO_DIGEST.encode() + text[first + len(_NO_DIGEST) :])
    return text[first : first + len(_NO_DIGEST)].decode("ascii", "replace"), found


def header_bytes(
    sizes: Mapping[str, int], layouts: Sequence[Sequence[Part]], records: Mapping[str, RecordEntry]
) -> bytes:
    """All of a data file before its data: length, JSON, and spaces up to a whole number of pages.

    Args:
        sizes: bytes of each piece by record, in the order of the file.
        layouts: lists of parts, which records name by number.
        records: what is said of each piece.
    """
    metadata = {
        "titan.format": FORMAT,
        "titan.version": str(VERSION),
        "titan.layout": LAYOUT,
        "titan.parts": _compact([[part.model_dump() for part in parts] for parts in layouts]),
        "titan.records": _compact({name: entry.model_dump() for name, entry in records.items()}),
    }
    table: dict[str, Any] = {"__metadata__": metadata}
    start = 0
    for name, size in sizes.items():
        table[name] = {"dtype": "U8", "shape": [size], "data_offsets": [start, start + size]}
        start += size
    text = _compact(table).encode("utf-8")
    padded = -(-(8 + len(text)) // PAGE_BYTES) * PAGE_BYTES
    return (padded - 8).to_bytes(8, "little") + text.ljust(padded - 8)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))
