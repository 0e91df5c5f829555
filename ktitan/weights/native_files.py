"""The files of a Titan Native directory, checked before anything in them is used.

Everything is held against everything else: the index against its own checksum, files against the index, each header
against its checksum, records against their pieces, parts against their record. All faults are found, not the first.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from ktitan.errors import Fault, FormatError, IoError, KtitanError, UnsupportedError, WeightError
from ktitan.formats import formats
from ktitan.weights.files import FileStamp, is_file, open_regular
from ktitan.weights.native_format import (
    ALIGN_BYTES,
    FORMAT,
    INDEX_NAME,
    LAYOUT,
    MAX_INDEX_BYTES,
    PAGE_BYTES,
    VERSION,
    FileEntry,
    Index,
    Part,
    RecordEntry,
    digest,
    stored_digest,
)
from ktitan.weights.safetensors_source import checked_header

__all__ = [
    "CONVERT_AGAIN",
    "COPY_AGAIN",
    "NativeFiles",
    "NativeRecord",
    "Piece",
    "part_bytes",
    "read_index",
    "read_native",
]

CONVERT_AGAIN = "convert the model again"
COPY_AGAIN = "copy the file again, or convert the model again"
T = TypeVar("T")

_PARTS: TypeAdapter[list[list[Part]]] = TypeAdapter(list[list[Part]])
_RECORDS: TypeAdapter[dict[str, RecordEntry]] = TypeAdapter(dict[str, RecordEntry])


@dataclass(frozen=True, slots=True)
class Piece:
    """A record, or what one drive has of it.

    Attributes:
        record: its name.
        start: first byte within the record.
        nbytes: a whole number of pages.
        file: path of the file.
        offset: first byte in the file, the start of a page.
        crc32c: of the piece.
    """

    record: str
    start: int
    nbytes: int
    file: str
    offset: int
    crc32c: int


@dataclass(frozen=True)
class NativeRecord:
    """Parts, and the pieces that one after another are the record."""

    parts: Sequence[Part]
    pieces: tuple[Piece, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces, padding included."""
        return self.pieces[-1].start + self.pieces[-1].nbytes


@dataclass
class NativeFiles:
    """What a directory holds.

    Attributes:
        index: the index.
        records: by name, in the order of the files.
        stamps: of the data files.
        pieces: every piece that a sound header describes, also of records that are broken.
        faults: what is wrong, each with the class of error that it makes.
    """

    index: Index
    records: dict[str, NativeRecord] = field(default_factory=dict)
    stamps: dict[str, FileStamp] = field(default_factory=dict)
    pieces: list[Piece] = field(default_factory=list)
    faults: list[tuple[type[KtitanError], Fault]] = field(default_factory=list)

    def check(self) -> None:
        """Raise the faults, if any, as one error of the first one's class.

        Raises:
            WeightError, FormatError, IoError, UnsupportedError: as the faults are.
        """
        if self.faults:
            kind: Any = self.faults[0][0]
            raise kind.from_faults(
                [fault for _, fault in self.faults], f"{len(self.faults)} faults in the native model"
            )


def read_native(folder: Path) -> NativeFiles:
    """Index and headers of a native model; faults in the files are collected in the result.

    Raises:
        WeightError, FormatError, UnsupportedError, IoError: the index itself cannot be used.
    """
    found = NativeFiles(read_index(folder))
    layouts: dict[str, Sequence[Part]] = {}
    pieces: dict[str, list[Piece]] = {}
    for entry in found.index.files:
        try:
            _read_file(folder, entry, found, layouts, pieces)
        except KtitanError as error:
            found.faults += [(type(error), fault) for fault in error.faults]
    found.pieces = [piece for group in pieces.values() for piece in group]
    if found.faults:
        return found  # a record's missing half says nothing new
    for name, group in pieces.items():
        group.sort(key=lambda piece: piece.start)
        faults = _record_faults(name, layouts[name], group)
        found.faults += [(FormatError, fault) for fault in faults]
        if not faults:
            found.records[name] = NativeRecord(layouts[name], tuple(group))
    return found


def read_index(folder: Path) -> Index:
    """The index, whose checksum, format, version and layout are right.

    Raises:
        WeightError: there is none: the conversion has not ended.
        UnsupportedError: another version or layout.
        FormatError: it is damaged.
        IoError: it cannot be read.
    """
    path = folder / INDEX_NAME
    if not is_file(path):
        raise WeightError(
            f"it has no {INDEX_NAME}: the conversion was not finished",
            str(folder),
            "run the same ktitan convert again: it goes on where it ended",
        )
    with open_regular(path) as file:
        text = file.read(MAX_INDEX_BYTES + 1)
    if len(text) > MAX_INDEX_BYTES:
        raise FormatError(f"larger than {MAX_INDEX_BYTES >> 20} MiB", str(path), CONVERT_AGAIN)
    stated, found = stored_digest(text)
    if stated != found:
        message = f"its SHA-256 is {found[:16]}..., and it says {stated[:16] or 'none'}: it was damaged or changed"
        raise FormatError(message, str(path), CONVERT_AGAIN)
    values = _parsed(text, lambda value: value if isinstance(value, dict) else {}, str(path))
    values.pop("sha256", None)
    _refuse_others(values.get("format"), values.get("version"), values.get("layout"), str(path))
    return _parsed(json.dumps(values), Index.model_validate, str(path))


def _refuse_others(name: Any, version: Any, layout: Any, where: str) -> None:
    """Refuse what this version does not know, by name; it is never read as something else.

    Raises:
        FormatError, UnsupportedError: as said.
    """
    if name != FORMAT:
        raise FormatError(f"its format is {str(name)[:80]!r}, not {FORMAT}", where, CONVERT_AGAIN)
    if str(version) != str(VERSION):
        remedy = "use the ktitan that wrote it, a newer one, or convert the model again"
        raise UnsupportedError(f"{FORMAT} version {str(version)[:20]}; this ktitan reads {VERSION}", where, remedy)
    if layout != LAYOUT:
        message = f"layout {str(layout)[:80]!r} is not known here; this ktitan reads {LAYOUT!r}"
        raise UnsupportedError(message, where, "use the ktitan that wrote it, or convert the model again")


def _parsed(text: str | bytes, validate: Callable[[Any], T], where: str) -> T:
    """JSON of a stranger as what it is to be.

    Raises:
        FormatError: it is not that; with the first place where it is not.
    """
    try:
        return validate(json.loads(text))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))[:120]
        message = f"{place}: {first['msg']} ({error.error_count()} values are wrong)"
        raise FormatError(message, where, CONVERT_AGAIN) from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not valid JSON: {str(error)[:120]}", where, CONVERT_AGAIN) from error


def _read_file(
    folder: Path,
    entry: FileEntry,
    found: NativeFiles,
    layouts: dict[str, Sequence[Part]],
    pieces: dict[str, list[Piece]],
) -> None:
    """Add what one data file has to `found`, `layouts` and `pieces`.

    Raises:
        KtitanError: the file or its header is not what the index says.
    """
    path = folder / entry.name
    if str(path) in found.stamps:
        raise FormatError(f"the index names {entry.name} twice", str(folder / INDEX_NAME), CONVERT_AGAIN)
    _check_place(folder, entry, found.index.stripes)
    header, raw, stamp = checked_header(path)
    if stamp.size != entry.bytes:
        raise FormatError(f"it has {stamp.size} bytes, the index says {entry.bytes}", str(path), COPY_AGAIN)
    if digest(raw) != entry.header_sha256:
        raise FormatError("its header is not the one that the index knows: damaged or changed", str(path), COPY_AGAIN)
    found.stamps[str(path)] = stamp
    metadata: Mapping[str, str] = header.pop("__metadata__", {})
    _refuse_others(metadata.get("titan.format"), metadata.get("titan.version"), metadata.get("titan.layout"), str(path))
    parts = _parsed(metadata.get("titan.parts", ""), _PARTS.validate_python, str(path))
    records = _parsed(metadata.get("titan.records", ""), _RECORDS.validate_python, str(path))
    if set(records) != set(header):
        raise FormatError("its list of records is not its list of tensors", str(path), CONVERT_AGAIN)
    for name, record in records.items():
        piece = _piece(name, record, header[name], str(path), len(raw))
        if record.layout >= len(parts) or layouts.setdefault(name, parts[record.layout]) != parts[record.layout]:
            raise FormatError(f"record {name}: no such layout, or another one than elsewhere", str(path), CONVERT_AGAIN)
        pieces.setdefault(name, []).append(piece)


def _check_place(folder: Path, entry: FileEntry, stripes: int) -> None:
    """Refuse a file that is not there, is a link, or lies elsewhere than in the directory or a stripe's folder.

    Raises:
        WeightError, FormatError, IoError: as said.
    """
    path, (*above, _) = folder / entry.name, entry.name.split("/")
    if above and int(above[0].partition("-")[2]) >= stripes:
        message = f"{entry.name}, but there are {stripes} stripes"
        raise FormatError(message, str(folder / INDEX_NAME), "do not trust this model")
    if above and not os.path.isdir(path.parent):
        remedy = f"mount the drive, or make {above[0]} a link to the folder that has its files"
        raise WeightError("the folder of this stripe is not there", str(path.parent), remedy)
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError as error:
        raise WeightError("the file is missing", str(path), COPY_AGAIN) from error
    except OSError as error:
        raise IoError.of(error, "cannot be looked at", path) from error
    if not stat.S_ISREG(mode):
        what = "a link, which may lead anywhere" if stat.S_ISLNK(mode) else "not a regular file"
        raise FormatError(what, str(path), "put the file itself there; only stripe-1, stripe-2 ... may be links")


def _piece(name: str, record: RecordEntry, tensor: Mapping[str, Any], file: str, data_start: int) -> Piece:
    begin, end = tensor["data_offsets"]
    piece = Piece(name, record.start, end - begin, file, data_start + begin, int(record.crc32c, 16))
    whole = all(number % PAGE_BYTES == 0 for number in (piece.start, piece.nbytes, piece.offset))
    if tensor["dtype"] != "U8" or not whole or not piece.nbytes:
        raise FormatError(f"record {name} is not whole pages of bytes", file, CONVERT_AGAIN)
    return piece


def _record_faults(name: str, parts: Sequence[Part], pieces: Sequence[Piece]) -> list[Fault]:
    """What keeps pieces from being a record, and its parts from being tensors."""
    end = 0
    for piece in pieces:
        if piece.start != end:
            what = f"bytes {end} to {piece.start} are in no file" if piece.start > end else "two files hold the same"
            return [Fault(f"record {name}: {what}", piece.file, CONVERT_AGAIN)]
        end = piece.start + piece.nbytes
    rows: dict[str, int] = {}
    shapes: dict[str, list[int]] = {}
    at = 0
    for part in parts:
        fault = _part_fault(part, at, end, rows.get(part.tensor, 0), shapes.setdefault(part.tensor, part.shape))
        if fault:
            return [Fault(f"record {name}, {part.tensor}: {fault}", pieces[0].file, CONVERT_AGAIN)]
        rows[part.tensor] = part.first_row + part.rows
        at = part.at + part_bytes(part)
    lacking = [tensor for tensor, shape in shapes.items() if rows[tensor] != math.prod(shape[:-1])]
    faults = [f"{tensor} lacks rows" for tensor in lacking] or ([] if end - at < PAGE_BYTES else ["too much padding"])
    return [Fault(f"record {name}: {fault}", pieces[0].file, CONVERT_AGAIN) for fault in faults]


def _part_fault(part: Part, at: int, end: int, first_row: int, shape: Sequence[int]) -> str:
    """Why a part cannot be; "" when it can. `at` is where the one before it ends."""
    stored = formats.find(part.format)
    if stored is None:
        return f"storage format {part.format!r} is not known"
    columns = part.shape[-1] if part.shape else 1
    if columns == 0 or columns % stored.block_elements:
        return f"rows of {columns} numbers in blocks of {stored.block_elements}"
    if part.shape != shape or part.first_row != first_row or 0 in part.shape:
        return "its parts do not follow each other"
    if part.at % ALIGN_BYTES or not 0 <= part.at - at < PAGE_BYTES or part.at + part_bytes(part) > end:
        return f"it begins at byte {part.at}, where it cannot be"
    return ""


def part_bytes(part: Part) -> int:
    """Stored bytes of a part whose format is known."""
    stored = formats.find(part.format)
    return 0 if stored is None else part.rows * stored.row_bytes(part.shape[-1] if part.shape else 1)
