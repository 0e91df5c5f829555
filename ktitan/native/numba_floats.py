"""Products with weights stored as floats: sixteen lanes and a tree, as csrc/cpu/README.md says; compiled by numba."""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from ktitan.native.numba_formats import f16_to_f32
from ktitan.native.numba_jit import STANDARD_FLOATS, emitted, jit, swap_float_mode
from ktitan.native.numba_lanes import Lanes, Memory, times

__all__ = ["FLOAT_BYTES", "float_product"]

# Bytes of one number, by ggml's type numbers: F32, F16, BF16.
_F32, _F16, _BF16 = 0, 1, 30
FLOAT_BYTES: dict[int, int] = {_F32: 4, _F16: 2, _BF16: 2}

_LANES = 16
_FLOAT = ir.FloatType()


def _load(kind: int, row: Memory, offset: ir.Value, count: int) -> Lanes:
    """`count` weights at `offset` bytes as float32, exactly."""
    if kind == _F32:
        return row.load(_FLOAT, offset, count)
    bits = row.load(ir.IntType(16), offset, count)
    return f16_to_f32(bits) if kind == _F16 else (bits.widen(32) << 16).as_floats()


@emitted
def _dots(typing: Any, kind: Any, number: Any, weights: Any, at: Any, x: Any, x_at: Any, columns: Any) -> Any:
    """One weight row with `number` rows of activations that follow each other: as many float32.

    `kind` (ggml's type) and `number` are constants; weights uint8 [..] from byte `at`, x float32 [..] from `x_at`.
    """
    storage, count = kind.literal_value, number.literal_value
    result = types.UniTuple(types.float32, count)

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        def at(argument: int, index: ir.Value) -> Memory:
            return Memory.of(context, builder, signature.args[argument], args[argument], index)

        columns, weight_bytes = args[6], FLOAT_BYTES[storage]
        starts = [builder.add(args[5], times(builder, columns, i)) for i in range(count)]
        row, rows = at(2, args[3]), [at(4, start) for start in starts]
        zeros = ir.Constant(ir.VectorType(_FLOAT, _LANES), [0.0] * _LANES)
        accs = [cgutils.alloca_once_value(builder, zeros) for _ in rows]
        width = ir.Constant(columns.type, _LANES)
        whole = builder.sdiv(columns, width)
        with cgutils.for_range(builder, whole, intp=columns.type) as loop:
            w = _load(storage, row, times(builder, loop.index, weight_bytes * _LANES), _LANES)
            for slot, x in zip(accs, rows, strict=True):
                part = x.load(_FLOAT, times(builder, loop.index, 4 * _LANES), _LANES)
                builder.store(w.fma(part, Lanes(builder, builder.load(slot))).value, slot)
        with cgutils.for_range(builder, builder.srem(columns, width), intp=columns.type) as loop:
            k = builder.add(times(builder, whole, _LANES), loop.index)
            w = _load(storage, row, times(builder, k, weight_bytes), 1)
            for slot, x in zip(accs, rows, strict=True):
                lanes = Lanes(builder, builder.load(slot))
                added = w.fma(x.load(_FLOAT, times(builder, k, 4)), lanes.lane(loop.index))
                builder.store(lanes.replaced(loop.index, added).value, slot)
        totals = [Lanes(builder, builder.load(slot)).sum_tree().value for slot in accs]
        return context.make_tuple(builder, result, totals)

    return result(kind, number, weights, types.intp, x, types.intp, types.intp), emit


@cache
def float_product(kind: int) -> Any:
    """The kernel of one float format, by ggml's type number.

    product(weights, row_bytes, rows, columns, x, out, width): weights uint8 flat; x float32 [M * columns]; out
    float32 [M * width], where out[m * width + n] is the dot of row n with row m of x.
    """

    @jit
    def product(weights: Any, row_bytes: Any, rows: Any, columns: Any, x: Any, out: Any, width: Any) -> None:
        count = x.size // columns
        fours = count - count % 4
        mode = swap_float_mode(STANDARD_FLOATS)
        for n in range(rows):
            for m in range(0, fours, 4):
                four = _dots(kind, 4, weights, n * row_bytes, x, m * columns, columns)
                for i in range(4):
                    out[(m + i) * width + n] = four[i]
            for m in range(fours, count):
                out[m * width + n] = _dots(kind, 1, weights, n * row_bytes, x, m * columns, columns)[0]
        swap_float_mode(mode)

    return product
