"""Drive reads at the place of a model: sequential and random, past the page cache with O_DIRECT.

A file of at least 256 MiB that is there is read as it is; otherwise one is written and removed again. Where O_DIRECT
is refused (tmpfs, some overlay and network file systems) reads are buffered after their pages are dropped, and the
metric says so. `/proc/self/io` tells how much of what was read came from the drive at all.
"""

from __future__ import annotations

import functools
import mmap
import os
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ktitan.bench.measure import Run, interleave, measure, repeats
from ktitan.bench.result import Result
from ktitan.bench.team import Team
from ktitan.errors import IoError

__all__ = ["SEQUENTIAL_BYTES", "DriveFile", "drive_bytes", "drive_results", "file_results", "read_target"]

LEAST_FILE_BYTES = 256 << 20
PIECE_BYTES = 16 << 20
SEQUENTIAL_BYTES = 1 << 20
RANDOM_BYTES = {"128KiB": 128 << 10, "4KiB": 4 << 10}
# Reads in flight, one thread each; the design's engines probe the best depth, a ceiling only has to be near it.
DEPTH = 8
RUN_SECONDS = 0.05
MAX_RUNS = 1000
# Under this share of the bytes the page cache or a hole in the file answered, and the figure is not the drive's.
FROM_DRIVE = 0.9


class DriveFile:
    """An open file whose reads go to the drive.

    Attributes:
        size_bytes: bytes of the file.
        how: how it is read, for the metric: O_DIRECT, or buffered and why.
        asked_bytes: bytes that have been read through it so far.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked_bytes = 0
        self.size_bytes = path.stat().st_size
        self.direct, self.how = True, "O_DIRECT"
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
            try:
                # Some file systems accept the flag and refuse the first read.
                os.preadv(self._fd, [mmap.mmap(-1, mmap.PAGESIZE)], 0)
            except OSError:
                os.close(self._fd)
                raise
        except OSError as error:
            self.direct, self.how = False, f"buffered: O_DIRECT refused ({error.strerror})"
            self._fd = os.open(path, os.O_RDONLY)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def read(self, buffer: mmap.mmap | memoryview, offset: int) -> None:
        """Fill `buffer` from `offset`; both are multiples of 4 KiB.

        Raises:
            IoError: the file ends too early.
        """
        if os.preadv(self._fd, [buffer], offset) != len(buffer):
            raise IoError(
                "a read came back short", where=f"{self.path}, offset {offset}", remedy="is it being written?"
            )

    def start(self, asked_bytes: int) -> None:
        """Prepare a run that will read `asked_bytes`: without O_DIRECT, drop the file's clean pages first."""
        self.asked_bytes += asked_bytes
        if not self.direct:
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)


def drive_results(path: str | Path, seconds: float) -> list[Result]:
    """Read bandwidth at `path` (a file or directory), about `seconds` for each size of read.

    Raises:
        IoError: there is no such path, or it cannot be read or written.
    """
    try:
        with read_target(Path(path)) as target:
            return file_results(target, seconds)
    except OSError as error:
        raise IoError(
            f"the drive cannot be measured: {error.strerror}",
            str(error.filename or path),
            "give --path a file that can be read, or a folder that can be written and has 256 MiB free",
        ) from error


def file_results(path: Path, seconds: float) -> list[Result]:
    """Read bandwidth of one file of at least 1 MiB, about `seconds` for each size of read; nothing is written.

    Raises:
        OSError: it cannot be read.
    """
    with Team(DEPTH) as team:
        file = DriveFile(path)
        try:
            return _results(file, team, seconds)
        finally:
            file.close()


@contextmanager
def read_target(path: Path) -> Iterator[Path]:
    """A file of at least 256 MiB at `path`: the path itself, the largest in it, or a temporary one.

    Raises:
        OSError: `path` does not exist, or the temporary file cannot be written.
    """
    folder = path if path.is_dir() else path.parent
    files = [entry for entry in folder.iterdir() if entry.is_file()] if path.is_dir() else [path]
    largest = max(files, key=lambda file: file.stat().st_size, default=None)
    if largest is not None and largest.stat().st_size >= LEAST_FILE_BYTES:
        yield largest
        return
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".ktitan-bench-") as made:
        # Random bytes: a drive or file system that compresses or skips zeros would read them too fast.
        generator = np.random.default_rng()
        for _ in range(LEAST_FILE_BYTES // PIECE_BYTES):
            made.write(generator.bytes(PIECE_BYTES))
        made.flush()
        os.fsync(made.fileno())
        yield Path(made.name)


def _results(file: DriveFile, team: Team, seconds: float) -> list[Result]:
    sequential, sequential_bytes = _batch(file, team, SEQUENTIAL_BYTES, _sequential(file, SEQUENTIAL_BYTES))
    check = functools.partial(_read_fault, file)
    drive_before, asked_before = drive_bytes(), file.asked_bytes
    timing = measure(sequential, MAX_RUNS, seconds=seconds, check=check, case="drive-sequential-1MiB")
    results = [
        Result(
            case="drive-sequential-1MiB",
            metric=_metric(file, drive_before, asked_before),
            value=timing.rate(sequential_bytes / 1e9),
            unit="GB/s",
            runs=timing.runs,
            spread=timing.spread,
        )
    ]
    for name, block_bytes in RANDOM_BYTES.items():
        scattered, scattered_bytes = _batch(file, team, block_bytes, _scattered(file, block_bytes))
        drive_before, asked_before = drive_bytes(), file.asked_bytes
        pairing = interleave(scattered, sequential, MAX_RUNS, seconds=seconds, case=f"drive-random-{name}")
        results.append(
            Result(
                case=f"drive-random-{name}",
                metric=_metric(file, drive_before, asked_before),
                value=pairing.a.rate(scattered_bytes / 1e9),
                unit="GB/s",
                ceiling=pairing.b.rate(sequential_bytes / 1e9),
                share_of_ceiling=pairing.ratio(scattered_bytes, sequential_bytes),
                runs=pairing.a.runs,
                spread=pairing.a.spread,
            )
        )
    return results


def _batch(file: DriveFile, team: Team, block_bytes: int, offsets: Callable[[int], Sequence[int]]) -> tuple[Run, int]:
    """A run of about RUN_SECONDS that reads blocks at `offsets(count)` on all threads, and the bytes it reads."""
    buffers = [mmap.mmap(-1, block_bytes) for _ in range(team.size)]

    def read(part: tuple[mmap.mmap, Sequence[int]]) -> None:
        buffer, places = part
        for offset in places:
            file.read(buffer, offset)

    def run(rounds: int) -> None:
        places = offsets(rounds * team.size)
        file.start(len(places) * block_bytes)
        team.run(read, [(buffer, places[index :: team.size]) for index, buffer in enumerate(buffers)])

    # The first guess takes several reads a thread, so that handing them over does not weigh.
    rounds = 4 * repeats(lambda: run(4), RUN_SECONDS)
    return functools.partial(run, rounds), rounds * team.size * block_bytes


def _sequential(file: DriveFile, block_bytes: int) -> Callable[[int], Sequence[int]]:
    """Offsets that go on where the last run ended, from the end of the file to its start again."""
    blocks = file.size_bytes // block_bytes
    position = 0

    def offsets(count: int) -> Sequence[int]:
        nonlocal position
        places = [(position + index) % blocks * block_bytes for index in range(count)]
        position = (position + count) % blocks
        return places

    return offsets


def _scattered(file: DriveFile, block_bytes: int) -> Callable[[int], Sequence[int]]:
    """Random offsets on block boundaries."""
    blocks = file.size_bytes // block_bytes
    generator = random.Random()
    return lambda count: [generator.randrange(blocks) * block_bytes for _ in range(count)]


def _read_fault(file: DriveFile) -> str | None:
    """What is wrong with the reads: 16 random pieces against an ordinary read of the same file."""
    block_bytes = RANDOM_BYTES["128KiB"]
    with mmap.mmap(-1, block_bytes) as buffer, file.path.open("rb") as plain:
        for offset in _scattered(file, block_bytes)(16):
            file.read(buffer, offset)
            plain.seek(offset)
            if plain.read(block_bytes) != buffer[:]:
                return f"{block_bytes} bytes at offset {offset} of {file.path} differ from an ordinary read"
    return None


def drive_bytes() -> int | None:
    """Bytes that this process has had fetched from block devices; None where the kernel does not count them."""
    try:
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes:")), None)


def _metric(file: DriveFile, drive_before: int | None, asked_before: int) -> str:
    """What was measured since the counters stood at `drive_before` and `asked_before`."""
    metric = f"read bandwidth, {DEPTH} in flight, {file.how}"
    drive_now, asked = drive_bytes(), file.asked_bytes - asked_before
    if drive_before is None or drive_now is None:
        return metric
    share = (drive_now - drive_before) / asked
    return metric if share >= FROM_DRIVE else f"{metric}, only {share:.0%} of it from the drive"
