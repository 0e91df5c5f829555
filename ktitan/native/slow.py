"""Rows of any format as float32, through the format's own dequantiser: slow, and the same numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from ktitan.formats import find_format

__all__ = ["SLOW_KERNEL", "dequantize", "dequantized_pieces"]

# How a plan names this path.
SLOW_KERNEL = "gguf dequantiser (slow path)"

# Float32 numbers that are held at a time; dequantisers need a few times that on the way.
_PIECE_NUMBERS = 2 << 20


def dequantize(format: str, data: np.ndarray) -> np.ndarray:
    """uint8 [rows, row_bytes] of a format -> float32 [rows, columns], contiguous."""
    stored = find_format(format, "matrix")
    if stored.dequantize is not None:
        return np.ascontiguousarray(stored.dequantize(data), np.float32)
    values = torch.from_numpy(data)
    return (values if stored.torch_dtype is None else values.view(stored.torch_dtype)).float().numpy()


def dequantized_pieces(format: str, data: np.ndarray, columns: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yields (first row, float32 [rows, columns]) for all rows of `data` in order, a bounded number at a time."""
    step = max(1, _PIECE_NUMBERS // columns)
    for first in range(0, data.shape[0], step):
        yield first, dequantize(format, data[first : first + step])
