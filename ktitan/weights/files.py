"""Files: what stands at a path, files opened once and read at offsets, and every refusal turned into an error."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from ktitan.errors import FormatError, IoError, WeightError

__all__ = [
    "FileReader",
    "FileStamp",
    "is_file",
    "is_folder",
    "missing",
    "names_in",
    "open_regular",
    "read_each",
    "stamp_of",
    "stat_of",
]

T = TypeVar("T")

READ_FAILED = "cannot be read"


@dataclass(frozen=True, slots=True)
class FileStamp:
    """What tells a file from another one that came to the same path, and from itself after it was written to."""

    device: int
    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> FileStamp:
        """The stamp in a stat result."""
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def stat_of(path: str | os.PathLike[str]) -> os.stat_result | None:
    """What stands at `path` (links are followed), or None when nothing does, also behind a broken link.

    Raises:
        IoError: it may not be looked at, or the path cannot be one.
    """
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise IoError.of(error, READ_FAILED, path) from error
    except ValueError as error:  # a NUL, or half of a surrogate pair
        raise IoError(f"{READ_FAILED}: {error}", repr(str(path)), "check the path") from error


def is_file(path: str | os.PathLike[str]) -> bool:
    """Whether a regular file is there; raises as `stat_of`."""
    found = stat_of(path)
    return found is not None and stat.S_ISREG(found.st_mode)


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a folder is there; raises as `stat_of`."""
    found = stat_of(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


def stamp_of(path: str | os.PathLike[str]) -> FileStamp:
    """The stamp of a regular file.

    Raises:
        WeightError: nothing is there, or something that is no regular file (a pipe would keep the reader for ever).
        IoError: it may not be looked at.
    """
    found = stat_of(path)
    if found is None:
        raise WeightError(missing(path), str(path), "check the path")
    if not stat.S_ISREG(found.st_mode):
        raise WeightError(f"{_kind(found)}, not a regular file", str(path), "give a folder or a file")
    return FileStamp.of(found)


def missing(path: str | os.PathLike[str]) -> str:
    """How to say that nothing is at `path`."""
    if os.path.islink(path):
        return f"a link to {os.readlink(path)!r}, where nothing is"
    return "no such file or folder"


def _kind(found: os.stat_result) -> str:
    kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
    return kinds.get(stat.S_IFMT(found.st_mode), "a device")


def names_in(folder: str | os.PathLike[str], *endings: str) -> list[str]:
    """Names in `folder` that end like one of `endings`, sorted.

    Raises:
        IoError: it may not be listed.
    """
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith(endings))
    except OSError as error:
        raise IoError.of(error, "the folder cannot be listed", folder) from error


@contextmanager
def open_regular(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A regular file, open for reading; a read that fails inside the block is an error with the file's name, too.

    Raises:
        WeightError, IoError: as `stamp_of`, or the file cannot be opened or read.
    """
    stamp_of(path)
    try:
        with Path(path).open("rb") as handle:
            yield handle
    except OSError as error:
        raise IoError.of(error, READ_FAILED, path) from error


def read_each(paths: Iterable[Path], read: Callable[[Path], T]) -> list[T]:
    """What `read` makes of each file.

    Raises:
        FormatError, IoError: with the faults of all files that are broken or cannot be read; of the first one's kind.
    """
    made: list[T] = []
    errors: list[FormatError | IoError] = []
    for path in paths:
        try:
            made.append(read(path))
        except (FormatError, IoError) as error:
            errors.append(error)
    if errors:
        faults = [fault for error in errors for fault in error.faults]
        raise type(errors[0]).from_faults(faults, f"{len(faults)} faults in the files")
    return made


class FileReader:
    """Keeps descriptors open and reads exact byte ranges; threads may share it.

    Args:
        stamps: of the files as they were when their headers were read; another file in place of one of them, or the
            same one written to since, is refused. A file without a stamp is taken as it is.
    """

    def __init__(self, stamps: Mapping[str, FileStamp] | None = None) -> None:
        self._descriptors: dict[str, int] = {}
        self._lock = threading.Lock()
        self.stamps: Mapping[str, FileStamp] = dict(stamps or {})

    def read(self, path: str, offset: int, view: memoryview) -> None:
        """Fill `view` from `offset` on.

        Raises:
            IoError: the file cannot be opened or read, ends early, or is not the one whose header was read.
        """
        done = 0
        try:
            descriptor = self._open(path)
            while done < len(view):
                count = os.preadv(descriptor, [view[done:]], offset + done)
                if count == 0:
                    raise IoError(
                        f"the file ends {len(view) - done} bytes early",
                        path,
                        "it changed or was cut since it was opened; copy it again",
                    )
                done += count
        except OSError as error:
            raise IoError.of(error, READ_FAILED, path) from error

    def close(self) -> None:
        """Close all descriptors; a later read opens them again."""
        with self._lock:
            for descriptor in self._descriptors.values():
                os.close(descriptor)
            self._descriptors.clear()

    def _open(self, path: str) -> int:
        with self._lock:
            if path not in self._descriptors:
                # A pipe that came in place of the file must not keep the reader waiting.
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                try:
                    _check_stamp(path, self.stamps.get(path), FileStamp.of(os.fstat(descriptor)))
                except IoError:
                    os.close(descriptor)
                    raise
                self._descriptors[path] = descriptor
            return self._descriptors[path]

    def __del__(self) -> None:
        self.close()


def _check_stamp(path: str, known: FileStamp | None, found: FileStamp) -> None:
    if known is None or known == found:
        return
    short = known.size - found.size
    how = f"the file ends {short} bytes early: it" if short > 0 else "the file"
    raise IoError(
        f"{how} was replaced or changed since its header was read",
        path,
        "put the same file back, or load the model again",
    )
