"""Which bytes of which record go to which file: one file a group on each drive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ktitan.convert.records import PlannedRecord
from ktitan.weights.native_format import PAGE_BYTES, Part, RecordEntry, file_name, header_bytes

__all__ = ["PlannedFile", "cut", "plan_files"]

# Smaller records are one read on one drive: a second drive would cost more than it brings.
LEAST_STRIPED_BYTES = 256 << 10


@dataclass(eq=False)
class PlannedFile:
    """A data file before it is written.

    Attributes:
        name: within the directory.
        drive: number of the drive.
        pieces: (first byte in the record, bytes) by record, in the order of the file.
        layouts: lists of parts.
        numbers: which of them a record has.
    """

    name: str
    drive: int
    pieces: dict[str, tuple[int, int]] = field(default_factory=dict)
    layouts: list[tuple[Part, ...]] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    def header(self, checksums: Mapping[str, int]) -> bytes:
        """All bytes before the data; its length does not depend on the checksums."""
        sizes = {name: size for name, (_, size) in self.pieces.items()}
        records = {
            name: RecordEntry(layout=self.numbers[name], start=start, crc32c=f"{checksums.get(name, 0):08x}")
            for name, (start, _) in self.pieces.items()
        }
        return header_bytes(sizes, self.layouts, records)

    @property
    def data_bytes(self) -> int:
        """Bytes of all pieces."""
        return sum(size for _, size in self.pieces.values())


def plan_files(group: str, records: Sequence[PlannedRecord], drives: int) -> list[PlannedFile]:
    """The files of a group; a drive that gets nothing of it has none."""
    files = [PlannedFile(file_name(group, drive), drive) for drive in range(drives)]
    known: list[dict[int, int]] = [{} for _ in files]
    for number, record in enumerate(records):
        for drive, start, size in cut(record, number, drives):
            file = files[drive]
            file.pieces[record.name] = (start, size)
            key = id(record.parts)
            if key not in known[drive]:
                known[drive][key] = len(file.layouts)
                file.layouts.append(record.parts)
            file.numbers[record.name] = known[drive][key]
    return [file for file in files if file.pieces]


def cut(record: PlannedRecord, number: int, drives: int) -> list[tuple[int, int, int]]:
    """(drive, first byte, bytes) of each piece of the record with that number in its group, in order; whole pages."""
    if drives == 1 or record.is_table or record.nbytes < LEAST_STRIPED_BYTES:
        return [(number % drives, 0, record.nbytes)]
    pages = record.nbytes // PAGE_BYTES
    edges = [pages * drive // drives * PAGE_BYTES for drive in range(drives + 1)]
    return [(drive, edges[drive], edges[drive + 1] - edges[drive]) for drive in range(drives)]
