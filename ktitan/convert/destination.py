"""The directory that a conversion writes to: whose it is, what is there already, and whether the drives have room."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ktitan.convert.layout import PlannedFile
from ktitan.convert.writer import PART_ENDING, replace_file, written
from ktitan.errors import BudgetError, Fault, UnsupportedError
from ktitan.tiers import format_bytes
from ktitan.weights.files import is_file, is_folder, names_in, stat_of
from ktitan.weights.json_files import read_json
from ktitan.weights.native_files import read_index
from ktitan.weights.native_format import INDEX_NAME, JOURNAL_NAME, MOST_STRIPES, VERSION, stripe_name

__all__ = ["Claim", "check_room", "claim", "locked"]

ANOTHER = "give another DST, or delete this one"


@dataclass(frozen=True)
class Claim:
    """What a directory is made of, as its journal says.

    Attributes:
        source: name, for messages.
        source_sha256: of what is converted.
        stripes: folders on further drives, absolute.
    """

    source: str
    source_sha256: str
    stripes: tuple[str, ...]


def claim(destination: Path, wanted: Claim) -> bool:
    """Note what `destination` is for, and make the stripes' folders; False when all is done already.

    Raises:
        UnsupportedError: something else is there, or a half-done conversion of another source.
        FormatError, IoError: what is there cannot be read or made.
    """
    if is_file(destination / INDEX_NAME):
        index = read_index(destination)
        _refuse_other(destination, wanted, Claim(index.source, index.source_sha256, wanted.stripes))
        if index.stripes != 1 + len(wanted.stripes):
            raise UnsupportedError(f"it has {index.stripes} stripes already", str(destination), ANOTHER)
        (destination / JOURNAL_NAME).unlink(missing_ok=True)
        return False
    if is_file(destination / JOURNAL_NAME):
        _refuse_other(destination, wanted, _read_journal(destination / JOURNAL_NAME))
    else:
        _refuse_others_files([destination, *map(Path, wanted.stripes)])
        fields = {"version": VERSION, **wanted.__dict__}
        replace_file(destination / JOURNAL_NAME, json.dumps(fields, indent=1).encode())
    for number, folder in enumerate(wanted.stripes, 1):
        with written(destination / stripe_name(number)):
            Path(folder).mkdir(exist_ok=True)
            link = destination / stripe_name(number)
            if not link.is_symlink():
                link.symlink_to(folder)
    return True


def stripe_folders(destination: Path, stripes: Sequence[Path]) -> tuple[str, ...]:
    """The folders as absolute paths.

    Raises:
        UnsupportedError: one is named twice, is DST, is no folder, or has none above it; all at once.
    """
    found = [os.path.realpath(one) for one in stripes]
    taken = [os.path.realpath(destination), *found]
    faults = [
        Fault("named twice, or DST itself", path, "give each drive one folder of its own")
        for path in dict.fromkeys(found)
        if taken.count(path) > 1
    ]
    faults += [Fault("no folder", path, "give a folder") for path in found if stat_of(path) and not is_folder(path)]
    # What is above it is not made: a drive that is not mounted would be made up on this one.
    above = [path for path in found if not is_folder(Path(path).parent)]
    faults += [Fault("no folder is above it", path, "mount the drive, or make the folder") for path in above]
    if len(taken) > MOST_STRIPES:
        faults.append(Fault(f"{len(taken)} drives", "--stripe", f"give at most {MOST_STRIPES - 1}"))
    if faults:
        raise UnsupportedError.from_faults(faults, f"{len(faults)} stripes cannot be used")
    return tuple(found)


def _read_journal(path: Path) -> Claim:
    values = read_json(path)
    stripes = values.get("stripes")
    known = tuple(map(str, stripes)) if isinstance(stripes, list) else ()
    return Claim(str(values.get("source")), str(values.get("source_sha256")), known)


def _refuse_other(destination: Path, wanted: Claim, there: Claim) -> None:
    if there.source_sha256 != wanted.source_sha256:
        message = f"it holds a conversion of {there.source}, which is not {wanted.source} as it is now"
        raise UnsupportedError(message, str(destination), ANOTHER)
    if there.stripes != wanted.stripes:
        message = f"it was begun with {len(there.stripes)} stripes: {', '.join(there.stripes) or 'none'}"
        raise UnsupportedError(message, str(destination), f"give the same --stripe again; or {ANOTHER}")


def _refuse_others_files(folders: Sequence[Path]) -> None:
    """Folders that are there must be empty."""
    faults = []
    for folder in folders:
        names = (
            [name for name in names_in(folder, "") if name != f"{JOURNAL_NAME}{PART_ENDING}"] if folder.exists() else []
        )
        if names:
            faults.append(
                Fault(f"it holds something else: {names[0]!r}", str(folder), "give an empty folder or a new one")
            )
    if faults:
        raise UnsupportedError.from_faults(faults, f"{len(faults)} folders are in use")


@contextmanager
def locked(destination: Path) -> Iterator[None]:
    """Make the directory and keep a second conversion out while the block runs; the kernel forgets it with the process.

    Raises:
        UnsupportedError: there is one, or something that is no folder.
        IoError: it cannot be made.
    """
    if stat_of(destination) is not None and not is_folder(destination):
        raise UnsupportedError("it is there, and no folder", str(destination), "give another DST")
    with written(destination):
        destination.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(destination, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        message = "another ktitan convert writes to it"
        raise UnsupportedError(message, str(destination), "wait until it ends") from error
    finally:
        os.close(descriptor)


def check_room(destination: Path, missing: Sequence[PlannedFile]) -> None:
    """Refuse to begin what cannot end, on all drives at once.

    Raises:
        BudgetError: a drive has less room than its files take.
    """
    needed: dict[int, int] = {}
    free: dict[int, int] = {}
    places: dict[int, Path] = {}
    for file in missing:
        folder = (destination / file.name).parent
        drive = os.stat(folder).st_dev
        if drive not in free:
            free[drive], places[drive] = shutil.disk_usage(folder).free, folder
        part = stat_of(destination / f"{file.name}{PART_ENDING}")
        free[drive] += part.st_blocks * 512 if part else 0  # what a killed run left is written over
        needed[drive] = needed.get(drive, 0) + len(file.header({})) + file.data_bytes
    faults = [
        Fault(
            f"{format_bytes(needed[drive])} are to be written, and {format_bytes(free[drive])} are free",
            str(places[drive]),
            "free some space, give another DST, or add drives with --stripe",
        )
        for drive in needed
        if needed[drive] > free[drive]
    ]
    if faults:
        raise BudgetError.from_faults(faults, f"{len(faults)} drives have no room")
