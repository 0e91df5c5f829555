"""The closed list of errors that ktitan raises for anything a user can cause or remedy.

An error says what is wrong, where, and what to do about it. Faults of one kind are collected and raised together
(`KtitanError.from_faults`), so that a rule file with five mistakes needs one run to be corrected, not five.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = [
    "BudgetError",
    "Fault",
    "FormatError",
    "HardwareError",
    "IoError",
    "KtitanError",
    "PlanError",
    "RuleError",
    "UnsupportedError",
    "WeightError",
    "printable",
]


# Faults that an error's text lists; `KtitanError.faults` holds all of them.
MOST_SHOWN = 100
_UNPRINTABLE = re.compile(r"[^\n\t\x20-\x7e\xa0-\ud7ff\ue000-\U0010ffff]")


def printable(text: str) -> str:
    """`text` with control characters escaped: names out of files must not drive a terminal."""
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong: what it is, where it stands (`file:line`, a module path, a tensor), what helps."""

    message: str
    where: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        remedy = f"\n  remedy: {self.remedy}" if self.remedy else ""
        return printable(f"{place}{self.message}{remedy}")


class KtitanError(Exception):
    """Base of all errors; `code` is the name of one of the classes below.

    Attributes:
        code: name of the error class, stable across versions.
        message: what is wrong, in one sentence.
        where: `file:line`, module path or tensor name; empty when the message says it.
        remedy: what the user can do.
        faults: every single fault when several were found; otherwise the one that this error describes.
    """

    def __init__(
        self, code: str, message: str, where: str = "", remedy: str = "", faults: Sequence[Fault] = ()
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.where = where
        self.remedy = remedy
        self.faults: tuple[Fault, ...] = tuple(faults) or (Fault(message, where, remedy),)

    def __str__(self) -> str:
        if len(self.faults) == 1:
            return f"[{self.code}] {self.faults[0]}"
        lines = [printable(f"[{self.code}] {self.message}")]
        lines += [f"{number}. {fault}" for number, fault in enumerate(self.faults[:MOST_SHOWN], 1)]
        if len(self.faults) > MOST_SHOWN:
            lines.append(f"and {len(self.faults) - MOST_SHOWN} more")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.code, self.message, self.where, self.remedy, self.faults))


def _rebuild(kind: type[KtitanError], code: str, *parts: Any) -> KtitanError:
    """Unpickle an error of any class of the list (their constructors differ in the first argument)."""
    return KtitanError(code, *parts) if kind is KtitanError else kind(*parts)


ErrorT = TypeVar("ErrorT", bound="_NamedError")


class _NamedError(KtitanError):
    """An error whose code is the name of its class."""

    def __init__(self, message: str, where: str = "", remedy: str = "", faults: Sequence[Fault] = ()) -> None:
        super().__init__(type(self).__name__, message, where, remedy, faults)

    @classmethod
    def from_faults(cls: type[ErrorT], faults: Sequence[Fault], summary: str = "") -> ErrorT:
        """One error for all `faults`; `summary` heads the list when there is more than one."""
        if len(faults) == 1:
            return cls(faults[0].message, faults[0].where, faults[0].remedy)
        return cls(summary or f"{len(faults)} faults", faults=faults)


class RuleError(_NamedError):
    """A rule file says something that cannot be followed."""


class PlanError(_NamedError):
    """Rules, model and sources do not make a whole."""


class FormatError(_NamedError):
    """A file's bytes are not what its format allows."""


class WeightError(_NamedError):
    """Tensors are missing, surplus, mis-shaped, or their files cannot be found."""


class BudgetError(_NamedError):
    """More bytes are needed in a tier than its budget allows."""


class UnsupportedError(_NamedError):
    """What was asked for is valid, but this build, model or operator cannot do it."""


_NO_PERMISSION = "give your user the right to, or use another place"
_NO_ROOM = "free space on that drive, or use another one"
_OS_REMEDIES = {
    errno.EACCES: _NO_PERMISSION,
    errno.EPERM: _NO_PERMISSION,
    errno.EROFS: "use a place that is not read-only",
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EMFILE: "raise the limit of open files (ulimit -n), or close some",
    errno.ENFILE: "raise the system's limit of open files, or close some",
    errno.EIO: "the drive fails; check it, and copy the file from elsewhere",
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP), "check the path"),
}


class IoError(_NamedError):
    """A drive or file failed while it was being read or written."""

    @classmethod
    def of(cls, error: OSError, doing: str, where: object) -> IoError:
        """What the operating system refused, e.g. "cannot be read: Permission denied"; `where` is the file."""
        remedy = _OS_REMEDIES.get(error.errno or 0, "check the drive and the permissions")
        return cls(f"{doing}: {error.strerror or error}", str(where), remedy)


class HardwareError(_NamedError):
    """A device or instruction set that was asked for is not there."""
