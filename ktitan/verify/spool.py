"""The reference's logits in a temporary file, so that the reference need not stay in memory beside the model."""

from __future__ import annotations

import logging
import shutil
import tempfile
from pathlib import Path
from typing import IO, Any

import torch

from ktitan.errors import BudgetError, IoError
from ktitan.tiers import format_bytes

__all__ = ["LogitSpool"]

logger = logging.getLogger(__name__)


class LogitSpool:
    """Logits [tokens, V], written once in order and read once in the same order, in the dtype that they come in.

    The file has no name as soon as it is open, so nothing is left behind however the run ends. It takes
    tokens x V x (4 bytes for float32, 2 for bfloat16 and float16).
    """

    def __init__(self, folder: Path | None, tokens: int) -> None:
        self._folder = Path(tempfile.gettempdir() if folder is None else folder)
        self._tokens = tokens
        self._file: IO[bytes] | None = None
        self._dtype = torch.float32
        self.vocabulary = 0

    def write(self, logits: torch.Tensor) -> None:
        """Append [T, V].

        Raises:
            BudgetError: the drive lacks the room for all tokens.
            IoError: the file cannot be made or written.
        """
        if self._file is None:
            self._open(logits)
        try:
            self._stream.write(logits.contiguous().cpu().view(torch.uint8).numpy().data)
        except OSError as error:
            raise self._failed("written", error) from error

    def read(self, count: int) -> torch.Tensor:
        """The next `count` positions, [count, V] on the CPU.

        Raises:
            IoError: the file cannot be read.
        """
        data = torch.empty(count, self.vocabulary, dtype=self._dtype)
        view = data.view(torch.uint8).numpy().reshape(-1).data
        try:
            found = self._stream.readinto(view)
        except OSError as error:
            raise self._failed("read", error) from error
        if found != len(view):
            raise IoError("the reference's logits end early", str(self._folder), "run it again")
        return data

    def rewind(self) -> None:
        """Turn from writing to reading.

        Raises:
            IoError: what was written does not reach the file.
        """
        try:
            self._stream.seek(0)
        except OSError as error:
            raise self._failed("written", error) from error

    def close(self) -> None:
        """Give the room back."""
        if self._file is not None:
            self._file.close()

    @property
    def _stream(self) -> Any:
        return self._file

    def _open(self, logits: torch.Tensor) -> None:
        self._dtype, self.vocabulary = logits.dtype, logits.shape[-1]
        needed = self._tokens * self.vocabulary * logits.element_size()
        try:
            free = shutil.disk_usage(self._folder).free
            if needed > free:
                raise BudgetError(
                    f"the reference's logits take {format_bytes(needed)}, {format_bytes(free)} are free",
                    str(self._folder),
                    "name a folder on another drive (--spool), or score fewer rows",
                )
            logger.info("the reference's logits take %s in %s", format_bytes(needed), self._folder)
            self._file = tempfile.TemporaryFile(dir=self._folder, prefix="ktitan-verify-")  # noqa: SIM115  close() does
        except OSError as error:
            raise self._failed("made", error) from error

    def _failed(self, what: str, error: OSError) -> IoError:
        return IoError(
            f"the reference's logits cannot be {what}: {error.strerror or error}",
            str(self._folder),
            "name a folder on another drive (--spool), or score fewer rows",
        )
