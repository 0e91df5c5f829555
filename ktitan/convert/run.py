"""From MODEL to a Titan Native directory; a run that was killed goes on after the last whole group of files."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import transformers

import ktitan
from ktitan.api.checksums import piece_faults
from ktitan.api.planning import Prepared, prepare
from ktitan.convert.beside import write_beside
from ktitan.convert.destination import Claim, check_room, claim, locked, stripe_folders
from ktitan.convert.layout import PlannedFile, plan_files
from ktitan.convert.records import PlannedRecord, RecordBytes, plan_records
from ktitan.convert.writer import GroupWriter, replace_file
from ktitan.errors import KtitanError, WeightError
from ktitan.native.crc import crc32c
from ktitan.weights.binding import WeightMap, bind
from ktitan.weights.files import is_file, stat_of
from ktitan.weights.native_files import Piece
from ktitan.weights.native_format import (
    FORMAT,
    INDEX_NAME,
    JOURNAL_NAME,
    LAYOUT,
    VERSION,
    FileEntry,
    Index,
    digest,
    index_text,
)
from ktitan.weights.safetensors_source import checked_header
from ktitan.weights.source import FileSource, TensorInfo

__all__ = ["Converted", "convert_model"]

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Converted:
    """What a conversion made.

    Attributes:
        path: the directory.
        files, records: how many.
        nbytes: bytes of the data files.
        kept_bytes: bytes that were there already, whole.
    """

    path: Path
    files: int
    records: int
    nbytes: int
    kept_bytes: int


def convert_model(
    model: str | Path,
    destination: str | Path,
    *,
    stripes: Sequence[str | Path] = (),
    progress: Progress | None = None,
) -> Converted:
    """Write MODEL as a Titan Native directory; rows keep the format in which they are stored.

    Args:
        model: a folder, a `.gguf`, a hub id, "demo", or a native model.
        destination: a new or empty folder, or one where the same conversion did not end: it goes on.
        stripes: folders on further drives; records of at least 256 KiB are cut over all of them and `destination`.
        progress: called with a step's name, bytes done and bytes in all.

    Raises:
        WeightError, FormatError, UnsupportedError: the source cannot be read, or `destination` holds something else.
        BudgetError: a drive has no room.
        IoError: reading or writing failed; the same call goes on.
        HardwareError: the native library, which computes the checksums, is not there.
    """
    crc32c(b"")  # where that is refused nothing need be begun
    destination = Path(destination)
    folders = stripe_folders(destination, [Path(one) for one in stripes])
    ready = prepare(model, device="cpu")
    groups = plan_records(ready.model, _bound(ready))
    plans = {name: plan_files(name, records, 1 + len(folders)) for name, records in groups.items()}
    wanted = Claim(ready.files.name, _fingerprint(ready), folders)
    with locked(destination):
        fresh = claim(destination, wanted)
        return _Run(ready, destination, groups, plans, progress or _silent).carry_out(wanted, fresh)


def _silent(name: str, done: int, total: int) -> None:
    pass


class _Run:
    """One conversion of a source whose records are planned."""

    def __init__(
        self,
        ready: Prepared,
        destination: Path,
        groups: dict[str, list[PlannedRecord]],
        plans: dict[str, list[PlannedFile]],
        progress: Progress,
    ) -> None:
        self.ready = ready
        self.destination = destination
        self.groups = groups
        self.plans = plans
        self.progress = progress
        self.nbytes = {group: sum(file.data_bytes for file in files) for group, files in plans.items()}

    def carry_out(self, wanted: Claim, fresh: bool) -> Converted:
        """Write what is missing, then what lies beside, then the index."""
        if not fresh:
            return self._result(sum(self.nbytes.values()))
        whole = self._whole_groups()
        missing = [group for group in self.groups if group not in whole]
        check_room(self.destination, [file for group in missing for file in self.plans[group]])
        total, done = sum(self.nbytes[group] for group in missing), 0
        reader = RecordBytes()

        def advance(count: int) -> None:
            nonlocal done
            done += count
            self.progress("convert", done, total)

        for group in missing:
            with GroupWriter(self.destination, self.plans[group]) as writer:
                for record in self.groups[group]:
                    writer.write(record, reader, advance)
                writer.finish()
        for source in self.ready.sources:
            source.close()
        write_beside(self.ready, self.destination)
        replace_file(self.destination / INDEX_NAME, index_text(self._index(wanted).model_dump()))
        (self.destination / JOURNAL_NAME).unlink(missing_ok=True)
        return self._result(sum(self.nbytes[group] for group in whole))

    def _result(self, kept: int) -> Converted:
        files = sum(map(len, self.plans.values()))
        records = sum(map(len, self.groups.values()))
        return Converted(self.destination, files, records, sum(self.nbytes.values()), kept)

    def _whole_groups(self) -> set[str]:
        """Groups whose files are all there, with the headers that they would get and the checksums that those state."""
        found = {group: self._pieces_there(files) for group, files in self.plans.items()}
        there = {group: pieces for group, pieces in found.items() if pieces is not None}
        before, total = 0, sum(piece.nbytes for pieces in there.values() for piece in pieces)
        whole: set[str] = set()
        for group, pieces in there.items():
            faults = piece_faults(pieces, partial(self._checked, before, total))
            before += self.nbytes[group]
            for fault in faults:
                logger.warning("%s; it is written anew", fault)
            if not faults:
                whole.add(group)
        return whole

    def _checked(self, before: int, total: int, done: int, _: int) -> None:
        self.progress("check what is there", before + done, total)

    def _pieces_there(self, files: Sequence[PlannedFile]) -> list[Piece] | None:
        pieces: list[Piece] = []
        for file in files:
            path = self.destination / file.name
            if not is_file(path):
                return None
            try:
                header, raw, stamp = checked_header(path)
                stated: Any = json.loads(header["__metadata__"]["titan.records"])
                checksums = {name: int(stated[name]["crc32c"], 16) for name in file.pieces}
                wrong = raw != file.header(checksums) or stamp.size != len(raw) + file.data_bytes
            except (KtitanError, LookupError, TypeError, ValueError):
                wrong = True
            if wrong:
                logger.warning("%s is not what this conversion writes; it is written anew", path)
                return None
            offset = len(raw)
            for name, (start, size) in file.pieces.items():
                pieces.append(Piece(name, start, size, str(path), offset, checksums[name]))
                offset += size
        return pieces

    def _index(self, wanted: Claim) -> Index:
        entries = []
        for files in self.plans.values():
            for file in files:
                path = self.destination / file.name
                _, raw, stamp = checked_header(path)
                entries.append(FileEntry(name=file.name, bytes=stamp.size, header_sha256=digest(raw)))
        return Index(
            format=FORMAT,
            version=VERSION,
            layout=LAYOUT,
            stripes=1 + len(wanted.stripes),
            source=wanted.source[:1000],
            source_sha256=wanted.source_sha256,
            made_by={"ktitan": ktitan.__version__, "transformers": transformers.__version__},
            files=entries,
        )


def _bound(ready: Prepared) -> WeightMap:
    """The weight map of a source that fills the model.

    Raises:
        WeightError: it does not; everything at once.
    """
    weights = bind(ready.model, ready.sources)
    if weights.faults:
        raise WeightError.from_faults(weights.faults, f"{len(weights.faults)} tensors do not fit")
    return weights


def _fingerprint(ready: Prepared) -> str:
    """SHA-256 over what tells this source from another, or from itself after a change: headers, sizes and times."""
    facts: list[Any] = []
    for source in ready.sources:
        facts.append([source.kind, *sorted([*_tensor(info), Path(info.file).name] for info in source.tensors.values())])
        stamps = source.stamps if isinstance(source, FileSource) else {}
        facts.append(sorted([Path(file).name, stamp.size, stamp.modified_ns] for file, stamp in stamps.items()))
    if ready.files.home is not None:
        config = stat_of(ready.files.home / "config.json")
        facts.append([config.st_size, config.st_mtime_ns] if config else [])
    return digest(json.dumps(facts).encode())


def _tensor(info: TensorInfo) -> list[Any]:
    return [info.name, list(info.shape), info.format, info.offset, info.nbytes]
