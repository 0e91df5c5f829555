"""Titan Native directories as a weight source; `ktitan convert` writes them, docs/native.md describes them."""

from __future__ import annotations

from pathlib import Path

from ktitan.errors import FormatError
from ktitan.formats import Span, find_format
from ktitan.weights.expression import Concat, Expression, Reshaped, Stack, Stored
from ktitan.weights.native_files import CONVERT_AGAIN, NativeFiles, NativeRecord, Piece, part_bytes, read_native
from ktitan.weights.native_format import Part, split_record
from ktitan.weights.source import FileSource, TensorInfo

__all__ = ["NativeSource", "open_native"]


class NativeSource(FileSource):
    """The tensors of one native model; names are those of the stock model's own tensors, so nothing is mapped.

    A stored tensor is what `ktitan.weights.native_format.Part` is: rows of one format in one record.

    Attributes:
        pieces: every record, or what each drive has of it, with its checksum.
    """

    kind = "native"

    def __init__(self, path: str, files: NativeFiles) -> None:
        self._places: dict[str, tuple[NativeRecord, int]] = {}
        self._parts: dict[str, dict[int | None, list[tuple[Part, TensorInfo]]]] = {}
        tensors: dict[str, TensorInfo] = {}
        for name, record in files.records.items():
            self._add(name, record, tensors)
        super().__init__(path, tensors, files.stamps)
        self.pieces: tuple[Piece, ...] = tuple(files.pieces)

    @property
    def is_quantised(self) -> bool:
        """Whether any tensor is stored in blocks."""
        return any(find_format(info.format, info.name).torch_dtype is None for info in self.tensors.values())

    def spans(self, info: TensorInfo, start: int, nbytes: int) -> tuple[Span, ...]:
        """See `FileSource.spans`; a record on several drives has one span on each."""
        record, at = self._places[info.name]
        first, end = at + start, at + start + nbytes
        found = []
        for piece in record.pieces:
            low, high = max(first, piece.start), min(end, piece.start + piece.nbytes)
            if low < high:
                found.append(Span(piece.file, piece.offset + low - piece.start, high - low))
        return tuple(found)

    def bindings(self) -> dict[str, Expression]:
        """Each tensor of the model under its own name.

        Raises:
            FormatError: experts are missing; all such tensors at once.
        """
        made: dict[str, Expression] = {}
        for name, entries in self._parts.items():
            one = entries.get(None)
            if one is not None:
                made[name] = self._whole(one)
                continue
            count = 1 + max(entry for entry in entries if entry is not None)
            lacking = next((number for number in range(count) if number not in entries), None)
            if lacking is not None:
                raise FormatError(f"expert {lacking} of {count} is missing", name, CONVERT_AGAIN)
            made[name] = Stack([self._whole(entries[number]) for number in range(count)])
        return made

    def _add(self, name: str, record: NativeRecord, tensors: dict[str, TensorInfo]) -> None:
        module, entry = split_record(name)
        several = {part.tensor for part in record.parts if part.first_row}
        for part in record.parts:
            prefix, suffix = (f"{name}." if name else ""), (f"#{part.first_row}" if part.tensor in several else "")
            stored = f"{prefix}{part.tensor}{suffix}"
            piece, inner = self._piece_of(record, part.at)
            columns = part.shape[-1] if part.shape else 1
            shape = tuple(part.shape) if part.tensor not in several else (part.rows, columns)
            info = TensorInfo(stored, shape, part.format, piece.file, piece.offset + inner, part_bytes(part))
            if stored in tensors:
                raise FormatError("two records hold it", stored, CONVERT_AGAIN)
            tensors[stored] = info
            self._places[stored] = (record, part.at)
            full = f"{module}.{part.tensor}" if module else part.tensor
            self._parts.setdefault(full, {}).setdefault(entry, []).append((part, info))

    def _piece_of(self, record: NativeRecord, at: int) -> tuple[Piece, int]:
        piece = next(piece for piece in record.pieces if at < piece.start + piece.nbytes)
        return piece, at - piece.start

    def _whole(self, parts: list[tuple[Part, TensorInfo]]) -> Expression:
        stored = [Stored(self, info) for _, info in parts]
        if len(stored) == 1:
            return stored[0]
        shape = tuple(parts[0][0].shape)
        joined = Concat(stored, 0)
        return joined if joined.shape == shape else Reshaped(joined, shape)


def open_native(path: str | Path) -> NativeSource:
    """Open a native model by its index and headers; no record is read.

    Raises:
        WeightError: the conversion has not ended, or files are missing.
        FormatError: files are damaged, or not what the index says.
        UnsupportedError: another version, or a layout that is not known.
        IoError: a file cannot be read.
    """
    files = read_native(Path(path))
    files.check()
    return NativeSource(str(path), files)
