"""Files opened once and read at offsets, with every short or failed read turned into an error."""

from __future__ import annotations

import os
import threading

from ktitan.errors import IoError

__all__ = ["FileReader"]


class FileReader:
    """Keeps descriptors open and reads exact byte ranges; threads may share it."""

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}
        self._lock = threading.Lock()

    def read(self, path: str, offset: int, view: memoryview) -> None:
        """Fill `view` from `offset` on.

        Raises:
            IoError: the file cannot be opened or read, or ends early.
        """
        done = 0
        try:
            descriptor = self._open(path)
            while done < len(view):
                count = os.preadv(descriptor, [view[done:]], offset + done)
                if count == 0:
                    raise IoError(
                        f"the file ends {len(view) - done} bytes early",
                        path,
                        "it changed or was cut since it was opened; copy it again",
                    )
                done += count
        except OSError as error:
            raise IoError(f"cannot read: {error.strerror}", path, "check the drive and the permissions") from error

    def close(self) -> None:
        """Close all descriptors; a later read opens them again."""
        with self._lock:
            for descriptor in self._descriptors.values():
                os.close(descriptor)
            self._descriptors.clear()

    def _open(self, path: str) -> int:
        with self._lock:
            if path not in self._descriptors:
                self._descriptors[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            return self._descriptors[path]

    def __del__(self) -> None:
        self.close()
