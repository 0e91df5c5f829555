"""Writes the files of a group; each is there under its name only when it is whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np

from ktitan.convert.layout import PlannedFile
from ktitan.convert.records import PlannedRecord, RecordBytes
from ktitan.errors import IoError
from ktitan.native.crc import crc32c

__all__ = ["PART_ENDING", "GroupWriter", "replace_file", "sync_folder", "written"]

# What a file is called until it is whole.
PART_ENDING = ".part"


class GroupWriter:
    """The open files of one group, and the checksums of what was written to them.

    Args:
        folder: the directory.
        files: of the group.
    """

    def __init__(self, folder: Path, files: Sequence[PlannedFile]) -> None:
        self._folder = folder
        self._files = {file.drive: file for file in files}
        self._handles: dict[int, BinaryIO] = {}
        self._checksums: dict[int, dict[str, int]] = {file.drive: {} for file in files}

    def __enter__(self) -> GroupWriter:
        for drive, file in self._files.items():
            with written(self._part(file)):
                self._handles[drive] = self._part(file).open("wb", buffering=0)
                _write_all(self._handles[drive], np.zeros(len(file.header({})), np.uint8))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles.values():
            handle.close()
        for file in self._files.values():  # what is whole has its own name already; a full drive gets its room back
            self._part(file).unlink(missing_ok=True)

    def write(self, record: PlannedRecord, reader: RecordBytes, advance: Callable[[int], None]) -> None:
        """Read a record and write its pieces; `advance` is called with numbers of bytes.

        Raises:
            IoError: it cannot be read or written.
        """
        pieces = [
            (*file.pieces[record.name], drive) for drive, file in self._files.items() if record.name in file.pieces
        ]
        pieces.sort()
        done = 0
        for data in reader.read(record):
            for start, size, drive in pieces:
                share = data[max(0, start - done) : max(0, start + size - done)]
                if not share.nbytes:
                    continue
                with written(self._part(self._files[drive])):
                    _write_all(self._handles[drive], share)
                sums = self._checksums[drive]
                sums[record.name] = crc32c(share, sums.get(record.name, 0))
            done += data.nbytes
            advance(data.nbytes)

    def finish(self) -> None:
        """Write the headers, wait for the drives, and give the files their names.

        Raises:
            IoError: a file cannot be written.
        """
        for drive, file in self._files.items():
            part, handle = self._part(file), self._handles[drive]
            with written(part):
                handle.seek(0)
                _write_all(handle, np.frombuffer(file.header(self._checksums[drive]), np.uint8))
                os.fsync(handle.fileno())
                handle.close()
                part.replace(self._folder / file.name)
                sync_folder(part.parent)

    def _part(self, file: PlannedFile) -> Path:
        return self._folder / f"{file.name}{PART_ENDING}"


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Turns what the operating system refuses in the block into an error with the file's name.

    Raises:
        IoError: it refused something.
    """
    try:
        yield
    except OSError as error:
        raise IoError.of(error, "cannot be written (the same command goes on from here)", path) from error


def _write_all(handle: BinaryIO, data: np.ndarray) -> None:
    view = data.data
    while view:
        count = handle.write(view)
        view = view[count:]


def replace_file(path: Path, data: bytes) -> None:
    """Put a small file in place, whole or not at all, and wait for the drive.

    Raises:
        IoError: it cannot be written.
    """
    part = path.with_name(f"{path.name}{PART_ENDING}")
    with written(path):
        with part.open("wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        part.replace(path)
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the drive has the names in a folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
