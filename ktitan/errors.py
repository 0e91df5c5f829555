"""The closed list of errors that ktitan raises for anything a user can cause or remedy.

An error says what is wrong, where, and what to do about it. Faults of one kind are collected and raised together
(`KtitanError.from_faults`), so that a rule file with five mistakes needs one run to be corrected, not five.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
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
    "translated",
]

# Of what a library says: some quote the whole file.
_LONGEST_QUOTE = 400


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong: what it is, where it stands (`file:line`, a module path, a tensor), what helps."""

    message: str
    where: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        remedy = f"\n  remedy: {self.remedy}" if self.remedy else ""
        return _printable(f"{place}{self.message}{remedy}")


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
        lines = [_printable(f"[{self.code}] {self.message}")]
        lines += [f"{number}. {fault}" for number, fault in enumerate(self.faults, 1)]
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.code, self.message, self.where, self.remedy, self.faults))


def _rebuild(kind: type[KtitanError], code: str, *parts: Any) -> KtitanError:
    """Unpickle an error of any class of the list (their constructors differ in the first argument)."""
    return KtitanError(code, *parts) if kind is KtitanError else kind(*parts)


def _printable(text: str) -> str:
    """`text` as UTF-8 can say it: names from files may hold halves of characters, paths may be no UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


class translated:
    """A context in which what a library raises for bad input becomes a `KtitanError`.

    For libraries that validate little and late (transformers, tokenizers): a wrong type deep in a file surfaces as
    whatever operation met it first. Errors of the machine (out of memory) and interrupts pass.

    Args:
        make: from the library's words, in one line, to the error.
        others: error classes to take besides the usual ones.
    """

    _USUAL = (
        ArithmeticError,
        AssertionError,
        AttributeError,
        LookupError,
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
    )

    def __init__(self, make: Callable[[str], KtitanError], *others: type[BaseException]) -> None:
        self._make = make
        self._kinds: tuple[type[BaseException], ...] = (*self._USUAL, *others)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Libraries in Rust raise Exception itself, or for a panic a class that cannot be imported.
        if isinstance(error, self._kinds) or kind is Exception or getattr(kind, "__name__", "") == "PanicException":
            raise self._make(_quoted(error)) from error


def _quoted(error: BaseException | None) -> str:
    words = " ".join(str(error).split())
    words = words if len(words) <= _LONGEST_QUOTE else f"{words[:_LONGEST_QUOTE]}..."
    return words if type(error) is Exception else f"{type(error).__name__}: {words}"


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


class IoError(_NamedError):
    """A drive or file failed while it was being read or written."""


class HardwareError(_NamedError):
    """A device or instruction set that was asked for is not there."""
