"""Files on the hub, read a piece at a time: a plan needs a GGUF's header, not its gigabytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from huggingface_hub import HfFileSystem

from ktitan.hub.failures import hub_failures
from ktitan.hub.fetch import Fetched

__all__ = ["open_remote"]

PIECE_BYTES = 1 << 20


@contextmanager
def open_remote(model: Fetched, path: str) -> Iterator[tuple[IO[bytes], str, int]]:
    """A file of `model` as a readable handle, its address, and its size in bytes.

    Raises:
        WeightError: the hub does not give it.
    """
    address = f"{model.name.repo}@{model.commit}/{path}"
    with hub_failures(model.name):
        handle: Any = HfFileSystem().open(address, "rb", block_size=PIECE_BYTES)
        with handle:
            yield handle, f"hf://{address}", model.files[path]
