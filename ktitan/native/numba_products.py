"""Products of packed weight rows with quantised activations, compiled by numba.

The formulas and their order are the arithmetic contract of csrc/cpu/README.md, so the bits are the native library's.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import float32

from ktitan.native.numba_dots import add_blocks, four_dots, unpack_block
from ktitan.native.numba_formats import LAYOUTS
from ktitan.native.numba_jit import STANDARD_FLOATS, jit, swap_float_mode

__all__ = ["packed_product"]


@cache
def packed_product(kind: int) -> Any:
    """The kernel of one format, by ggml's type number.

    product(weights, row_bytes, rows, columns, q, d, sums, out, width): weights uint8 flat; M rows of activations as q
    int16 [M * columns], d float32 [M * columns / block], sums int16 [M * columns / 32]; out float32 [M * width], where
    out[m * width + n] is the dot of row n with activations m.
    """
    layout = LAYOUTS[kind]
    block, block_bytes, shares = layout.block, layout.block_bytes, layout.block // 32
    group = 4 if block == 32 else 1

    @jit
    def product(
        weights: Any,
        row_bytes: Any,
        rows: Any,
        columns: Any,
        q: Any,
        d: Any,
        sums: Any,
        out: Any,
        width: Any,
    ) -> None:
        blocks = columns // block
        count = q.size // columns
        fours = count - count % 4
        together = blocks - blocks % group
        row = np.empty(columns, np.int16)
        mins = np.empty(columns // 32, np.int16)
        scales = np.empty(2 * blocks, np.float32)
        mode = swap_float_mode(STANDARD_FLOATS)
        for n in range(rows):
            start = n * row_bytes
            if fours:
                for b in range(blocks):
                    scales[2 * b], scales[2 * b + 1] = unpack_block(
                        kind, weights, start + b * block_bytes, row, b * block, mins, b * shares
                    )
            for m in range(0, fours, 4):
                four = four_dots(kind, row, mins, scales, blocks, q, sums, d, m)
                for i in range(4):
                    out[(m + i) * width + n] = four[i]
            for m in range(fours, count):
                acc = float32(0)
                for b in range(0, together, group):
                    at, x = start + b * block_bytes, m * blocks + b
                    acc = add_blocks(kind, group, acc, weights, at, q, x * block, sums, x * shares, d, x)
                for b in range(together, blocks):
                    at, x = start + b * block_bytes, m * blocks + b
                    acc = add_blocks(kind, 1, acc, weights, at, q, x * block, sums, x * shares, d, x)
                out[m * width + n] = acc
        swap_float_mode(mode)

    return product
