"""The checksums of a native model's records: read everything, compare, and name what differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ktitan.errors import Fault, FormatError, IoError, KtitanError, UnsupportedError
from ktitan.native.crc import crc32c
from ktitan.weights.files import FileReader, FileStamp
from ktitan.weights.native_files import COPY_AGAIN, Piece, read_native
from ktitan.weights.native_source import NativeSource
from ktitan.weights.source import WeightSource

__all__ = ["check_weights", "native_faults", "piece_faults"]

CHUNK_BYTES = 16 << 20
Progress = Callable[[int, int], None]


def check_weights(sources: Sequence[WeightSource], progress: Progress | None = None) -> None:
    """Read every record of native sources and compare its checksum.

    Args:
        sources: opened sources.
        progress: called with (bytes read, bytes in all).

    Raises:
        UnsupportedError: a source carries no checksums; all such sources at once, before anything is read.
        FormatError: records differ from their checksums; all at once.
        IoError: a file cannot be read.
        HardwareError: the native library, which computes them, is not there.
    """
    without = [
        Fault(
            "it carries no checksums", source.path, "leave --verify-weights out, or convert the model: ktitan convert"
        )
        for source in sources
        if not isinstance(source, NativeSource)
    ]
    if without:
        raise UnsupportedError.from_faults(without, f"{len(without)} sources carry no checksums")
    native = [source for source in sources if isinstance(source, NativeSource)]
    stamps = {file: stamp for source in native for file, stamp in source.stamps.items()}
    faults = piece_faults([piece for source in native for piece in source.pieces], progress, stamps)
    if faults:
        raise FormatError.from_faults(faults, f"{len(faults)} records are damaged")


def native_faults(folder: Path, progress: Progress | None = None) -> tuple[int, list[Fault]]:
    """Everything that is wrong with a native model: index, headers, and every record of the files with sound headers.

    Returns:
        The number of records (or pieces of them on drives) that were compared, and the faults.

    Raises:
        HardwareError: the native library is not there.
    """
    try:
        found = read_native(folder)
        faults = [fault for _, fault in found.faults]
        if not faults:
            NativeSource(str(folder), found).bindings()
    except KtitanError as error:
        return 0, list(error.faults)
    return len(found.pieces), [*faults, *piece_faults(found.pieces, progress, found.stamps)]


def piece_faults(
    pieces: Iterable[Piece], progress: Progress | None = None, stamps: Mapping[str, FileStamp] | None = None
) -> list[Fault]:
    """What of `pieces` cannot be read or has another checksum, with file, record and offset.

    Raises:
        HardwareError: the native library is not there.
    """
    pieces = list(pieces)
    total, done = sum(piece.nbytes for piece in pieces), 0
    buffer = np.empty(min(CHUNK_BYTES, max((piece.nbytes for piece in pieces), default=0)), np.uint8)
    reader = FileReader(stamps)
    faults: list[Fault] = []
    for piece in pieces:
        checksum = 0
        try:
            for start in range(0, piece.nbytes, CHUNK_BYTES):
                chunk = buffer[: min(CHUNK_BYTES, piece.nbytes - start)]
                reader.read(piece.file, piece.offset + start, chunk.data)
                checksum = crc32c(chunk, checksum)
                done += len(chunk)
                if progress is not None:
                    progress(done, total)
        except IoError as error:
            faults += error.faults
            continue
        if checksum != piece.crc32c:
            what = f"CRC-32C {checksum:08x}, stored {piece.crc32c:08x}: the bytes changed"
            message = f"record {piece.record} ({piece.nbytes} bytes at offset {piece.offset}): {what}"
            faults.append(Fault(message, piece.file, COPY_AGAIN))
    reader.close()
    return faults
