"""What transformers, tokenizers and their kin raise for a stranger's files, as one error that names the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub.errors import StrictDataclassError

from ktitan.errors import IoError, KtitanError

__all__ = ["FOREIGN_FAULTS", "first_line", "refused"]

# The libraries validate little, and late, so that a wrong value shows as almost anything.
FOREIGN_FAULTS = (
    StrictDataclassError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
LONGEST_REASON = 300


def first_line(error: BaseException) -> str:
    """The library's own reason, without the pages that may follow it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = " ".join(lines[:2]) if lines else ""
    cut = reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON]}..."
    return f"{type(error).__name__}: {cut}" if cut else type(error).__name__


@contextmanager
def refused(kind: type[KtitanError], message: str, where: object, remedy: str) -> Iterator[None]:
    """Turns whatever a library raises in the block into `kind`, with its first line as the reason.

    An error of ktitan's own passes as it is; what the operating system refuses becomes an IoError with its file.
    """
    try:
        yield
    except KtitanError:
        raise
    except BaseException as error:
        # Libraries in Rust raise Exception itself, or for a panic a class that cannot be imported. Any other class is
        # not a fault of the file.
        known = type(error) is Exception or type(error).__name__ == "PanicException"
        if not known and not isinstance(error, FOREIGN_FAULTS):
            raise
        if isinstance(error, OSError) and error.errno is not None:
            raise IoError.of(error, message, error.filename or where) from error
        raise kind(f"{message}: {first_line(error)}", where=str(where), remedy=remedy) from error  # type: ignore[call-arg]
