"""A weight matrix in memory as it lies on disk: rows of one storage format."""

from __future__ import annotations

from typing import Any

import numpy as np

from ktitan.errors import FormatError
from ktitan.formats import find_format

__all__ = ["FLOAT_FORMATS", "GGML_TYPES", "PackedMatrix", "activation_block"]

# The formats that kernels compute with, by ggml's type numbers (csrc/cpu/kernels.h has the same list).
GGML_TYPES: dict[str, int] = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "q2_k": 10,
    "q3_k": 11,
    "q4_k": 12,
    "q5_k": 13,
    "q6_k": 14,
    "iq2_xxs": 16,
    "iq2_xs": 17,
    "iq3_xxs": 18,
    "iq1_s": 19,
    "iq4_nl": 20,
    "iq3_s": 21,
    "iq2_s": 22,
    "iq4_xs": 23,
    "iq1_m": 29,
    "bf16": 30,
    "tq1_0": 34,
    "tq2_0": 35,
    "mxfp4": 39,
    "nvfp4": 40,
}
FLOAT_FORMATS = frozenset({"f32", "f16", "bf16"})

_ALIGNMENT_BYTES = 64


def activation_block(format: str) -> int:
    """Numbers of an activation row that share one scale when they meet weights of `format`: 256 or 32."""
    return 256 if find_format(format, "").block_elements == 256 else 32


def _aligned(size: int) -> np.ndarray:
    """`size` bytes of uninitialised memory that start at a cache line."""
    raw = np.empty(size + _ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT_BYTES
    return raw[start : start + size]


class PackedMatrix:
    """[rows, columns] numbers of one format, row after row as on disk.

    The memory is uninitialised until a loader fills `data`; from then on nothing writes it, so copies of a module share
    it (`copy.deepcopy` returns the same object). Pickling copies the bytes.

    Attributes:
        format: name of the storage format, a key of `GGML_TYPES`.
        rows: N; experts' matrices stack their rows, so E * N.
        columns: K, the length of one row in numbers.
        row_bytes: bytes of one row.
        nbytes: bytes of all rows.
        data: uint8 [rows, row_bytes], writable, starts at a multiple of 64 bytes.
        address: where `data` starts.
    """

    def __init__(self, format: str, rows: int, columns: int) -> None:
        """Reserve memory for a matrix.

        Raises:
            FormatError: no kernel knows the format, a row is not a whole number of its blocks, or a size is negative.
        """
        if format not in GGML_TYPES:
            known = ", ".join(GGML_TYPES)
            raise FormatError(f"no CPU kernel computes with format {format!r}", remedy=f"use one of: {known}")
        if rows < 0 or columns < 1:
            raise FormatError(
                f"a {format} matrix of {rows} x {columns} numbers",
                remedy="give at least 0 rows and 1 column",
            )
        self.format = format
        self.rows = rows
        self.columns = columns
        self.row_bytes = find_format(format, "").row_bytes(columns)
        self.nbytes = rows * self.row_bytes
        self.data = _aligned(self.nbytes).reshape(rows, self.row_bytes)
        self.address: int = self.data.ctypes.data

    @classmethod
    def over(cls, format: str, columns: int, data: np.ndarray) -> PackedMatrix:
        """A matrix over memory that something else fills: uint8 [rows, row_bytes], dense, at any address.

        Raises:
            FormatError: no kernel knows the format, or the rows have another width.
        """
        made = cls(format, 0, columns)
        if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != made.row_bytes or not data.flags.c_contiguous:
            raise FormatError(
                f"{data.dtype} {list(data.shape)} is no matrix of {format} with {columns} columns",
                remedy=f"give dense bytes [rows, {made.row_bytes}]",
            )
        made.rows, made.nbytes, made.data, made.address = len(data), data.nbytes, data, data.ctypes.data
        return made

    @property
    def ggml_type(self) -> int:
        """ggml's number of the format."""
        return GGML_TYPES[self.format]

    @property
    def is_float(self) -> bool:
        """Whether the rows are plain floats; products with them never quantise activations."""
        return self.format in FLOAT_FORMATS

    def __repr__(self) -> str:
        return f"PackedMatrix({self.format!r}, rows={self.rows}, columns={self.columns})"

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedMatrix:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (_from_bytes, (self.format, self.rows, self.columns, self.data))


def _from_bytes(format: str, rows: int, columns: int, data: np.ndarray) -> PackedMatrix:
    matrix = PackedMatrix(format, rows, columns)
    matrix.data[...] = data
    return matrix
