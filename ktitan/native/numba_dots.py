"""Dots of a packed block with quantised activations, as intrinsics for compiled code.

An array and the index where it begins are two arguments side by side. Formulas: csrc/cpu/README.md.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from ktitan.native.numba_formats import LAYOUTS, f16_to_f32
from ktitan.native.numba_jit import emitted
from ktitan.native.numba_lanes import Lanes, Memory, join, sum_each, times

__all__ = ["add_blocks", "four_dots", "unpack_block"]

_I16, _F32 = ir.IntType(16), ir.FloatType()


def _memory(context: Any, builder: ir.IRBuilder, signature: Any, args: Any, position: int) -> Memory:
    """The memory that an (array, index) pair of arguments names."""
    return Memory.of(context, builder, signature.args[position], args[position], args[position + 1])


def _partial_dot(left: Sequence[Lanes], right: Memory) -> Lanes:
    """Numbers whose sum is the dot of int16 vectors with as many int16 numbers in memory; int32."""
    sums = [part.pair_sums(right.load(_I16, 2 * part.count * i, part.count)) for i, part in enumerate(left)]
    return reduce(operator.add, sums)


def _terms(d: Lanes, scale: Lanes, total: Lanes, offset: Lanes | None, minimum: Lanes | None) -> tuple[Lanes, Lanes]:
    """What a block adds to acc, as the two factors of the last fma.

    d of the activations, d of the weights, S, the factor of the mins, M; lanes are blocks or rows.
    """
    if offset is None or minimum is None:
        return scale * d, total.to_floats()
    return d, scale.fma(total.to_floats(), -(offset * minimum.to_floats()))


@emitted
def add_blocks(
    typing: Any, kind: Any, number: Any, acc: Any, weights: Any, at: Any, q: Any, q_at: Any, sums: Any, sums_at: Any,
    d: Any, d_at: Any
) -> Any:  # fmt: skip
    """acc plus `number` blocks of weights times as many blocks of activations, in ascending order: float32.

    `kind` (ggml's type) and `number` (1 or 4) are constants; weights uint8 [..], q and sums int16 [..], d float32 [..].
    Four blocks at a time share the conversions and the sums across lanes.
    """
    layout, count = LAYOUTS[kind.literal_value], number.literal_value

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        source, activations, shares, factors = (_memory(context, builder, signature, args, i) for i in (3, 5, 7, 9))
        blocks = [layout.read(source.moved(layout.block_bytes * i)) for i in range(count)]
        total = _sums([_partial_dot(b.weights, activations.moved(2 * layout.block * i)) for i, b in enumerate(blocks)])
        offset = minimum = None
        if layout.offsets:
            step = layout.block // 16
            minimum = _sums([_partial_dot([b.mins], shares.moved(step * i)) for i, b in enumerate(blocks) if b.mins])
            offset = f16_to_f32(_together([b.offset for b in blocks if b.offset]))
        scale = f16_to_f32(_together([b.scale for b in blocks]))
        factor, term = _terms(factors.load(_F32, 0, count), scale, total, offset, minimum)
        acc = Lanes(builder, args[2])
        for i in range(count):
            acc = factor.lane(i).fma(term.lane(i), acc)
        return acc.value

    here = types.intp
    return types.float32(kind, number, types.float32, weights, here, q, here, sums, here, d, here), emit


def _sums(parts: list[Lanes]) -> Lanes:
    """The sum of each vector's lanes, as one vector; a number when there is one."""
    return sum_each(parts) if len(parts) > 1 else parts[0].sum()


def _together(numbers: list[Lanes]) -> Lanes:
    """Numbers as the lanes of a vector; one stays a number."""
    return join(*numbers) if len(numbers) > 1 else numbers[0]


@emitted
def unpack_block(typing: Any, kind: Any, weights: Any, at: Any, row: Any, row_at: Any, mins: Any, mins_at: Any) -> Any:
    """One block of weights as int16 numbers and mins in memory; returns (d, factor of the mins or 0)."""
    layout = LAYOUTS[kind.literal_value]
    result = types.UniTuple(types.float32, 2)

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        source, target, minima = (_memory(context, builder, signature, args, i) for i in (1, 3, 5))
        block = layout.read(source)
        for i, vector in enumerate(block.weights):
            target.store(vector, 64 * i)
        if block.mins is not None:
            minima.store(block.mins)
        scale = f16_to_f32(block.scale)
        offset = scale.constant(0.0) if block.offset is None else f16_to_f32(block.offset)
        return context.make_tuple(builder, result, [scale.value, offset.value])

    return result(kind, weights, types.intp, row, types.intp, mins, types.intp), emit


@emitted
def four_dots(
    typing: Any, kind: Any, row: Any, mins: Any, scales: Any, blocks: Any, q: Any, sums: Any, d: Any, first: Any
) -> Any:
    """One unpacked weight row with four rows of activations, `first` and the next three: four float32.

    row int16 [blocks * block], mins int16 [blocks * block / 32], scales float32 [blocks * 2] from `unpack_block`;
    q, sums and d hold all rows of activations one after another.
    """
    layout = LAYOUTS[kind.literal_value]
    result = types.UniTuple(types.float32, 4)
    signature = result(kind, row, mins, scales, types.intp, q, sums, d, types.intp)

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        def at(argument: int, index: ir.Value, step: int) -> Memory:
            place = times(builder, index, step)
            return Memory.of(context, builder, signature.args[argument], args[argument], place)

        acc = cgutils.alloca_once_value(builder, ir.Constant(ir.VectorType(_F32, 4), [0.0] * 4))
        rows = [builder.mul(args[4], builder.add(args[8], ir.Constant(args[8].type, i))) for i in range(4)]
        shares = layout.block // 32
        with cgutils.for_range(builder, args[4], intp=args[4].type) as loop:
            here, factors = [builder.add(start, loop.index) for start in rows], at(3, loop.index, 2)
            weights = [at(1, loop.index, layout.block).load(_I16, 64 * i, 32) for i in range(shares)]
            total = sum_each([_partial_dot(weights, at(5, b, layout.block)) for b in here])
            offset = minimum = None
            if layout.offsets:
                offset, least = factors.load(_F32, 4).splat(4), at(2, loop.index, shares).load(_I16, 0, shares)
                minimum = sum_each([_partial_dot([least], at(6, b, shares)) for b in here])
            d_a = join(*(at(7, b, 1).load(_F32) for b in here))
            factor, term = _terms(d_a, factors.load(_F32).splat(4), total, offset, minimum)
            builder.store(factor.fma(term, Lanes(builder, builder.load(acc))).value, acc)
        dots = Lanes(builder, builder.load(acc))
        return context.make_tuple(builder, result, [dots.lane(i).value for i in range(4)])

    return signature, emit
