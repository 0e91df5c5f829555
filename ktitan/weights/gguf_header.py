"""The header of one GGUF file: metadata and tensor table, every size checked against the file before it is used.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little endian).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, Any

import gguf

from ktitan.errors import FormatError
from ktitan.formats import find_format
from ktitan.weights.files import FileStamp, open_regular
from ktitan.weights.source import TensorInfo

__all__ = ["GgufHeader", "parse_header", "read_header"]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT_KEY = "general.alignment"
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
# The largest header of a known model (a vocabulary of 262 thousand tokens with merges) is near 16 MiB.
MAX_HEADER_BYTES = 256 << 20
CHUNK_BYTES = 1 << 20
# Far above any model, and low enough that a file made to be large when it is read stays below a gigabyte.
MAX_NAME_BYTES = 1024
MAX_PAIRS = 1 << 16
MAX_TENSORS = 1 << 20
MAX_ARRAY_ENTRIES = 1 << 23  # of all arrays together
# The least that one entry takes: key length, type, one byte; name length, dimension count, type, offset.
MIN_PAIR_BYTES = 8 + 4 + 1
MIN_TENSOR_BYTES = 8 + 4 + 4 + 8

COPY_AGAIN = "the file is damaged or its download is incomplete; copy it again"

_STRING, _ARRAY, _UINT32 = 8, 9, 4
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_FORMAT_NAMES = {kind.value: kind.name.lower() for kind in gguf.GGMLQuantizationType}


@dataclass(frozen=True)
class GgufHeader:
    """What one file says of itself.

    Attributes:
        file: its path.
        metadata: Python values by key; arrays are lists.
        tensors: by name, with shapes in torch order and offsets from the start of the file.
        stamp: the file as it was; None for one that is not here.
    """

    file: str
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    stamp: FileStamp | None


def read_header(path: str | os.PathLike[str]) -> GgufHeader:
    """Read and check the header of the file at `path`.

    Raises:
        FormatError: the file is not GGUF, is damaged, or uses a version, byte order or tensor type that is not known.
        WeightError: there is no regular file.
        IoError: the file cannot be opened or read.
    """
    with open_regular(path) as handle:
        stamp = FileStamp.of(os.fstat(handle.fileno()))
        return parse_header(handle, str(path), stamp.size, stamp)


def parse_header(handle: IO[bytes], name: str, size: int, stamp: FileStamp | None = None) -> GgufHeader:
    """Read and check the header at the start of `handle`, a file of `size` bytes that is called `name`.

    Raises:
        FormatError: as `read_header`.
    """
    return _read(_Cursor(handle, name, size), stamp)


class _Cursor:
    """Walks through a file; no more than what is left of it, or of a header's largest size, is ever read."""

    def __init__(self, handle: IO[bytes], path: str, size: int) -> None:
        self.path = path
        self.size = size
        self.at = 0
        self.entries_left = MAX_ARRAY_ENTRIES
        self._handle = handle
        self._buffer = b""
        self._base = 0

    @property
    def left(self) -> int:
        return min(self.size, MAX_HEADER_BYTES) - self.at

    def fault(self, message: str, remedy: str = COPY_AGAIN) -> FormatError:
        return FormatError(message, self.path, remedy)

    def take(self, count: int, what: str) -> bytes:
        """The next `count` bytes."""
        if count > self.left:
            raise self.fault(f"{what} takes {count} bytes, {self.left} are left at byte {self.at}")
        start = self.at - self._base
        if start + count > len(self._buffer):
            self._buffer = self._buffer[start:] + self._handle.read(max(count, CHUNK_BYTES))
            self._base, start = self.at, 0
            if count > len(self._buffer):
                raise self.fault(f"the file ended at byte {self._base + len(self._buffer)} while it was being read")
        self.at += count
        return self._buffer[start : start + count]

    def number(self, code: str, what: str) -> Any:
        """One number, by its `struct` code."""
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}"), what))[0]

    def text(self, what: str, most: int = MAX_HEADER_BYTES) -> str:
        """A string of at most `most` bytes: its length in 8 bytes, then UTF-8."""
        length = self.number("Q", what)
        if most < length <= self.left:
            raise self.fault(f"{what} is {length} bytes long, at most {most} are read")
        raw = self.take(length, what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fault(f"{what} is not valid UTF-8") from error


def _read(cursor: _Cursor, stamp: FileStamp | None) -> GgufHeader:
    _check_version(cursor)
    tensor_count = cursor.number("Q", "the tensor count")
    pair_count = cursor.number("Q", "the metadata count")
    if tensor_count * MIN_TENSOR_BYTES + pair_count * MIN_PAIR_BYTES > cursor.left:
        raise cursor.fault(
            f"{tensor_count} tensors and {pair_count} metadata keys do not fit into {cursor.left} bytes of header"
        )
    if tensor_count > MAX_TENSORS or pair_count > MAX_PAIRS:
        raise cursor.fault(
            f"{tensor_count} tensors and {pair_count} metadata keys; at most {MAX_TENSORS} and {MAX_PAIRS} are read"
        )
    metadata = _read_metadata(cursor, pair_count)
    alignment = metadata.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
    entries: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for _ in range(tensor_count):
        name, entry = _read_entry(cursor)
        if name in entries:
            raise cursor.fault(f"tensor {name!r} is there twice")
        entries[name] = entry
    data_start = -(-cursor.at // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for name, (shape, kind, offset) in entries.items():
        if offset % alignment:
            raise cursor.fault(f"tensor {name!r} starts at {offset}, not at a multiple of {alignment}")
        tensors[name] = _tensor(cursor, name, shape, kind, data_start + offset)
    _check_overlap(cursor, tensors)
    return GgufHeader(cursor.path, metadata, tensors, stamp)


def _check_version(cursor: _Cursor) -> None:
    if cursor.size < len(MAGIC) or cursor.take(len(MAGIC), "the magic") != MAGIC:
        raise cursor.fault("this is not a GGUF file: it does not start with 'GGUF'", "give the path of a .gguf file")
    version = cursor.number("I", "the version")
    if version and version & 0xFFFF == 0:
        raise cursor.fault("the file is big endian", "convert it with the script gguf-convert-endian of package gguf")
    if version not in VERSIONS:
        raise cursor.fault(
            f"GGUF version {version} is not known", f"versions {VERSIONS} are read; convert the model again"
        )


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(count):
        key = cursor.text(f"metadata key {index}", MAX_NAME_BYTES)
        if not key:
            raise cursor.fault(f"metadata key {index} is empty")
        if key in metadata:
            raise cursor.fault(f"metadata key {key!r} is there twice")
        kind = cursor.number("I", f"the type of {key!r}")
        metadata[key] = _read_value(cursor, kind, f"the value of {key!r}")
        if key == ALIGNMENT_KEY:
            _check_alignment(cursor, kind, metadata[key])
    return metadata


def _read_value(cursor: _Cursor, kind: int, what: str) -> Any:
    if kind == _STRING:
        return cursor.text(what)
    if kind == _ARRAY:
        return _read_array(cursor, what)
    if kind not in _SCALARS:
        raise cursor.fault(f"{what} has the unknown type {kind}")
    return cursor.number(_SCALARS[kind], what)


def _read_array(cursor: _Cursor, what: str) -> list[Any]:
    kind = cursor.number("I", what)
    count = cursor.number("Q", what)
    if kind != _STRING and kind not in _SCALARS:
        raise cursor.fault(f"{what} is an array of the unknown type {kind}")
    width = 8 if kind == _STRING else struct.calcsize(f"<{_SCALARS[kind]}")
    if count * width > cursor.left:
        raise cursor.fault(f"{what} is an array of {count}, which does not fit into the {cursor.left} bytes left")
    cursor.entries_left -= count
    if cursor.entries_left < 0:
        raise cursor.fault(f"{what} is an array of {count}; all arrays together may have {MAX_ARRAY_ENTRIES} entries")
    if kind == _STRING:
        return [cursor.text(what) for _ in range(count)]
    return list(struct.unpack(f"<{count}{_SCALARS[kind]}", cursor.take(count * width, what)))


def _check_alignment(cursor: _Cursor, kind: int, value: Any) -> None:
    if kind != _UINT32 or value <= 0 or value & (value - 1):
        raise cursor.fault(
            f"{ALIGNMENT_KEY} must be a power of two of type uint32, not {value!r} of type {kind}",
            "write the file again with a valid alignment",
        )


def _read_entry(cursor: _Cursor) -> tuple[str, tuple[tuple[int, ...], int, int]]:
    """One row of the tensor table: name, then shape in torch order, type number, offset in the data."""
    name = cursor.text("a tensor's name", MAX_NAME_BYTES)
    what = f"the entry of tensor {name!r}"
    dimensions = cursor.number("I", what)
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise cursor.fault(f"tensor {name!r} has {dimensions} dimensions, from 1 to {MAX_DIMENSIONS} are allowed")
    shape = tuple(cursor.number("Q", what) for _ in range(dimensions))
    return name, (shape[::-1], cursor.number("I", what), cursor.number("Q", what))


def _tensor(cursor: _Cursor, name: str, shape: tuple[int, ...], kind: int, offset: int) -> TensorInfo:
    where = f"{cursor.path}: tensor {name!r}"
    if kind not in _FORMAT_NAMES:
        raise FormatError(f"type number {kind} is unknown", where, "a newer version of package gguf may know it")
    try:
        nbytes = find_format(_FORMAT_NAMES[kind], name).tensor_bytes(shape)
    except FormatError as error:
        raise FormatError(error.message, where, error.remedy or COPY_AGAIN) from error
    if offset + nbytes > cursor.size:
        raise FormatError(f"ends at byte {offset + nbytes}, the file has {cursor.size}", where, COPY_AGAIN)
    return TensorInfo(name, shape, _FORMAT_NAMES[kind], cursor.path, offset, nbytes)


def _check_overlap(cursor: _Cursor, tensors: Mapping[str, TensorInfo]) -> None:
    ordered = sorted((one for one in tensors.values() if one.nbytes), key=lambda one: one.offset)
    for before, after in pairwise(ordered):
        if before.offset + before.nbytes > after.offset:
            raise cursor.fault(f"tensors {before.name!r} and {after.name!r} overlap")
