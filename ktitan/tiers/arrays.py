"""Named arrays in an .npz that anyone may have written: looked at before they are believed, and never half-written."""

from __future__ import annotations

import lzma
import os
import stat
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import numpy as np

from ktitan.errors import FormatError, IoError

__all__ = ["is_file", "read_arrays", "write_arrays"]

# An array that claims more than this is refused; 100,000 tokens of a large model with predictions have 330 MB.
_MOST_BYTES = 1 << 30
_MOST_ARRAYS = 64
# What zipfile and numpy raise for bytes that they cannot read (RuntimeError: a password is wanted).
_BROKEN = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, ValueError, EOFError, NotImplementedError, RuntimeError)


def is_file(path: Path, what: str) -> bool:
    """Whether there is a file; not where there is nothing.

    Raises:
        IoError: there is something else, or nobody can tell (no permission, a name that is too long).
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise IoError.of(error, f"the {what} cannot be read", path) from error
    except ValueError as error:
        raise IoError(f"no name of a file: {error}", repr(str(path)), "give another name") from error
    if not stat.S_ISREG(mode):
        raise IoError("not a file", str(path), f"give a {what} that ktitan wrote")
    return True


def read_arrays(path: str | Path, what: str) -> dict[str, np.ndarray]:
    """All arrays of an .npz. Sizes are compared before memory is taken; pickled objects are refused.

    Args:
        path: of the file.
        what: its kind, for messages.

    Raises:
        FormatError: it is no .npz, or an array's header contradicts its bytes.
        IoError: it cannot be read.
    """
    path = Path(path)
    remedy = f"give a {what} that ktitan wrote"
    is_file(path, what)
    try:
        with zipfile.ZipFile(path) as archive:
            members = [one for one in archive.infolist() if one.filename.endswith(".npy")]
            if len(members) > _MOST_ARRAYS or sum(one.file_size for one in members) > _MOST_BYTES:
                raise FormatError(f"too many or too large arrays for a {what}", str(path), remedy)
            found = {}
            for member in members:
                with archive.open(member) as stream:
                    _check_header(stream, member.file_size)
                with archive.open(member) as stream:
                    found[member.filename.removesuffix(".npy")] = np.lib.format.read_array(stream, allow_pickle=False)
            return found
    except OSError as error:
        raise IoError.of(error, f"the {what} cannot be read", path) from error
    except _BROKEN as error:
        raise FormatError(f"this is no {what}: {error}", str(path), remedy) from error


def write_arrays(path: str | Path, arrays: Mapping[str, np.ndarray], what: str) -> None:
    """Write an .npz under another name and rename it; a link stays one, to the new file.

    Raises:
        IoError: it cannot be written.
    """
    path = Path(os.path.realpath(path))
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        try:
            with part.open("wb") as stream:
                np.savez_compressed(stream, allow_pickle=False, **arrays)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise IoError.of(error, f"the {what} cannot be written", path) from error


def _check_header(stream: IO[bytes], member_bytes: int) -> None:
    """Refuse an array whose shape does not match the bytes that follow.

    Raises:
        ValueError: it does not, or holds objects.
    """
    version = np.lib.format.read_magic(stream)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"an array of format {version}")
    shape, _, dtype = readers[version](stream)
    count = 1
    for size in shape:
        count *= size
    if dtype.hasobject or min(shape, default=0) < 0 or stream.tell() + count * dtype.itemsize != member_bytes:
        raise ValueError(f"an array of shape {shape} and type {dtype} in {member_bytes} bytes")
