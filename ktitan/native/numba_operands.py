"""Rows of activations in the forms that kernels read, and products of a matrix's rows with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ktitan.native.matrix import FLOAT_FORMATS, GGML_TYPES, PackedMatrix, activation_block
from ktitan.native.numba_floats import float_product
from ktitan.native.numba_formats import LAYOUTS
from ktitan.native.numba_products import packed_product
from ktitan.native.numba_vectors import quantize
from ktitan.native.numba_workers import Workers
from ktitan.native.slow import SLOW_KERNEL, dequantized_pieces

__all__ = ["Operand", "Quantized", "form_of", "kernel_name", "multiply", "operand"]

# Bytes of activations that stay in a core's cache while weight rows pass by.
_BAND_BYTES = 256 << 10
# Numbers that one thread quantises at a time.
_ITEM_NUMBERS = 64 << 10


@dataclass(frozen=True)
class Quantized:
    """M rows of K activations: x is about d * q for each block.

    Attributes:
        block: numbers that share one d, 32 or 256.
        q: int16 [M, K], -127 to 127; twice the size of int8, so that products read it without unpacking.
        d: float32 [M, K / block].
        sums: int16 [M, K / 32], sums of 32 neighbours of q.
    """

    block: int
    q: np.ndarray
    d: np.ndarray
    sums: np.ndarray

    def __getitem__(self, rows: slice | np.ndarray) -> Quantized:
        return Quantized(self.block, self.q[rows], self.d[rows], self.sums[rows])

    @property
    def shape(self) -> tuple[int, ...]:
        """(M, K)."""
        return self.q.shape


# Float32 rows [M, K], or quantised ones.
Operand = np.ndarray | Quantized


def form_of(format: str, activations: str) -> int:
    """The numbers in a block of the activations that the kernel of a format reads; 0 for float32 rows."""
    packed = activations == "int8" and GGML_TYPES.get(format) in LAYOUTS
    return activation_block(format) if packed else 0


def kernel_name(format: str, activations: str) -> str:
    """What computes with a format, for the plan."""
    if format in FLOAT_FORMATS:
        return f"numba {format} x float32"
    return f"numba {format} x int8" if form_of(format, activations) else SLOW_KERNEL


def operand(x: np.ndarray, forms: Iterable[int], workers: Workers) -> dict[int, Operand]:
    """x float32 [M, K], contiguous, in each of `forms` (see `form_of`)."""
    return {form: _quantized(x, form, workers) if form else x for form in set(forms)}


def _quantized(x: np.ndarray, block: int, workers: Workers) -> Quantized:
    rows, columns = x.shape
    result = Quantized(
        block,
        np.empty((rows, columns), np.int16),
        np.empty((rows, columns // block), np.float32),
        np.empty((rows, columns // 32), np.int16),
    )
    kernel, blocks, step = quantize(block), x.size // block, _ITEM_NUMBERS // block
    flat = x.reshape(-1), result.q.reshape(-1), result.d.reshape(-1), result.sums.reshape(-1)

    def task(item: int) -> None:
        kernel(flat[0], item * step, min((item + 1) * step, blocks), *flat[1:])

    workers.run(task, -(-blocks // step))
    return result


def multiply(matrix: PackedMatrix, begin: int, end: int, x: Operand, out: np.ndarray, width: int) -> None:
    """out[m * width + n] = dot of the matrix's row begin + n with row m of x, for n < end - begin.

    `x` is in the form that `form_of` names for the matrix; out float32, flat.
    """
    data = matrix.data[begin:end]
    if isinstance(x, Quantized):
        _multiply_packed(matrix, data, x, out, width)
    elif matrix.is_float:
        _multiply_floats(GGML_TYPES[matrix.format], data, x, out, width)
    else:
        for first, rows in dequantized_pieces(matrix.format, data, matrix.columns):
            _multiply_floats(GGML_TYPES["f32"], rows.view(np.uint8), x, out[first:], width)


def _bands(rows: int, row_bytes: int) -> Iterator[slice]:
    """Slices of activation rows that fit into a cache together."""
    step = max(4, _BAND_BYTES // row_bytes // 4 * 4)
    return (slice(first, min(first + step, rows)) for first in range(0, rows, step))


def _multiply_packed(matrix: PackedMatrix, data: np.ndarray, x: Quantized, out: np.ndarray, width: int) -> None:
    kernel, columns = packed_product(GGML_TYPES[matrix.format]), x.shape[1]
    weights, rows, row_bytes = data.reshape(-1), data.shape[0], data.shape[1]
    for band in _bands(x.shape[0], 2 * columns):
        part = x[band]
        target = out[band.start * width :]
        q, d, sums = part.q.reshape(-1), part.d.reshape(-1), part.sums.reshape(-1)
        kernel(weights, row_bytes, rows, columns, q, d, sums, target, width)


def _multiply_floats(kind: int, data: np.ndarray, x: np.ndarray, out: np.ndarray, width: int) -> None:
    kernel, columns = float_product(kind), x.shape[1]
    weights, rows, row_bytes = data.reshape(-1), data.shape[0], data.shape[1]
    for band in _bands(x.shape[0], 4 * columns):
        kernel(weights, row_bytes, rows, columns, x[band].reshape(-1), out[band.start * width :], width)
