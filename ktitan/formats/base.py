"""What a storage format is: how many bytes hold how many numbers, and how to get the numbers back."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from ktitan.errors import FormatError
from ktitan.registry import Registry

__all__ = ["Format", "find_format", "formats", "register_format"]


@dataclass(frozen=True)
class Format:
    """A storage format.

    Attributes:
        name: lower case, as the format's project spells it ("bf16", "q4_k").
        block_elements: numbers in one block, along the last dimension of a tensor.
        block_bytes: bytes of one block.
        torch_dtype: the dtype whose memory layout the stored bytes have; None for packed blocks.
        dequantize: uint8 [rows, row_bytes] -> float32 [rows, columns]; None where `torch_dtype` says it all.
    """

    name: str
    block_elements: int
    block_bytes: int
    torch_dtype: torch.dtype | None = None
    dequantize: Callable[[np.ndarray], np.ndarray] | None = None

    @property
    def bits_per_weight(self) -> float:
        """Stored bits per number, scales included."""
        return 8 * self.block_bytes / self.block_elements

    def row_bytes(self, columns: int) -> int:
        """Bytes of one row of `columns` numbers.

        Raises:
            FormatError: the row is not a whole number of blocks.
        """
        blocks, rest = divmod(columns, self.block_elements)
        if rest:
            raise FormatError(
                f"a row of {columns} numbers is not a whole number of {self.name} blocks of {self.block_elements}",
                remedy=f"use rows of a multiple of {self.block_elements} numbers, or another format",
            )
        return blocks * self.block_bytes

    def tensor_bytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor of `shape`, whose last dimension is the row."""
        if not shape:
            return self.row_bytes(1)
        return math.prod(shape[:-1]) * self.row_bytes(shape[-1])


formats: Registry[Format] = Registry("format")


def register_format(entry: Format) -> Format:
    """Enter a format under its name and return it."""
    formats.add(entry.name, entry)
    return entry


def find_format(name: str, where: str) -> Format:
    """The format called `name`.

    Raises:
        FormatError: it is unknown; `where` says which tensor has it.
    """
    entry = formats.find(name)
    if entry is None:
        raise FormatError(f"storage format {name!r} is unknown", where, f"known formats: {', '.join(formats.names())}")
    return entry
