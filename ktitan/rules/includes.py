"""Reading rule files from the drive, and which files an `include:` may name."""

from __future__ import annotations

import importlib.resources
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ktitan.registry import nearest
from ktitan.rules.faultlog import FaultLog
from ktitan.rules.nodes import Location, shorten

__all__ = ["MAX_FILE_BYTES", "IncludeFolders", "packaged_folder", "read_file"]

MAX_FILE_BYTES = 4 << 20


def packaged_folder() -> Path:
    """The folder of the rule files that come with ktitan."""
    return Path(str(importlib.resources.files("ktitan.injection_rules")))


def read_file(path: str, location: Location, log: FaultLog) -> str | None:
    """The text of a rule file; None, with a fault at `location`, when it cannot be read as UTF-8."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        log.add(location, f"there is no rule file {path!r}", _neighbour(path))
        return None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        log.add(location, f"rule file {shorten(path)!r} cannot be read: {reason}", "name a YAML file that you may read")
        return None
    if len(data) > MAX_FILE_BYTES:
        message = f"{path!r} is larger than {MAX_FILE_BYTES >> 20} MiB"
        log.add(location, message, "a rule file is short YAML; is this a weight file?")
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"byte 0x{data[error.start]:02x} is not UTF-8"
        log.add(Location(path, line), message, "save the file as UTF-8 text; is it a rule file at all?")
        return None


def _neighbour(path: str) -> str:
    """The rule file beside `path` whose name is nearest."""
    known = _rule_files(os.path.dirname(path) or ".")
    return nearest(os.path.basename(path), known) if known else "check the path"


def _rule_files(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.endswith((".yaml", ".yml"))]
    except (OSError, ValueError):
        return []


@dataclass(frozen=True)
class IncludeFolders:
    """The folder trees that includes may come from: that of the first rule file (if it is one) and the packaged one."""

    own: str | None
    packaged: str

    @classmethod
    def around(cls, path: str | None) -> IncludeFolders:
        """The folders for a rule file; `path` is None for text and Python structures, which have no folder."""
        own = None if path is None else os.path.dirname(os.path.abspath(path))
        return cls(own, os.path.abspath(packaged_folder()))

    def find(self, name: str, base: str | None, location: Location, log: FaultLog) -> str | None:
        """The file that an include means; None, with a fault at `location`, when it is refused or missing.

        Args:
            name: as written, relative to `base` or else to the packaged folder; absolute only into the packaged folder.
            base: folder of the including file.
            location: where the include stands.
            log: takes the fault.
        """
        starts = [self.packaged] if base is None else [base, self.packaged]
        candidates = [os.path.normpath(os.path.join(os.path.abspath(start), name)) for start in starts]
        trees = [self.packaged] if os.path.isabs(name) or self.own is None else [self.own, self.packaged]
        allowed = [path for path in candidates if any(_inside(path, tree) for tree in trees)]
        if not allowed:
            message = f"include {shorten(name)!r} leaves the folder of the rule file"
            log.add(location, message, "includes lie below the first rule file's folder or in ktitan's own rules")
            return None
        for path in allowed:
            if os.path.isfile(path):
                return path
        log.add(location, f"there is no rule file {shorten(name)!r} to include", self._nearest(name, starts))
        return None

    def _nearest(self, name: str, starts: Sequence[str]) -> str:
        folder = os.path.dirname(name)
        known: list[str] = []
        for start in starts:
            known += (os.path.join(folder, file) for file in _rule_files(os.path.join(start, folder)))
        return nearest(name, set(known))


def _inside(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip(os.sep) + os.sep)
