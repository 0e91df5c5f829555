"""What happens to rows of activations between products: quantising, SiLU and GELU, weighted sums; compiled by numba.

Formulas and constants: csrc/cpu/contract.h, operation by operation.
"""

from __future__ import annotations

from functools import cache, reduce
from typing import Any

from llvmlite import ir
from numba import float32, types

from ktitan.native.numba_jit import STANDARD_FLOATS, emitted, jit, swap_float_mode
from ktitan.native.numba_lanes import Lanes, Memory

__all__ = ["activate", "quantize", "weighted_sums"]

_I32, _FLOAT = ir.IntType(32), ir.FloatType()
_INFINITY = 0x7F800000
_TINY = 1e-30  # a block with no larger number counts as zero

# Added to |x| < 2^22, it leaves x rounded to nearest even in the low bits.
_ROUNDER = float.fromhex("0x1.8p23")
_ROUNDER_BITS = 0x4B400000

_LOG2_E = float.fromhex("0x1.715476p+0")
_LN2_HIGH = float.fromhex("0x1.62e430p-1")
_LN2_LOW = float.fromhex("-0x1.05c610p-29")
_EXP_LOW = float.fromhex("-0x1.5d589ep+6")
_EXP_HIGH = float.fromhex("0x1.62e42ep+6")
# e^r is about 1 + r + r^2 * polynomial; highest power first.
_EXP_TERMS = tuple(
    float.fromhex(term)
    for term in ("0x1.6a2352p-10", "0x1.123a6cp-7", "0x1.5558f4p-5", "0x1.555490p-3", "0x1.fffffcp-2")
)
_GELU_C1 = float.fromhex("-0x1.988454p+0")
_GELU_C3 = float.fromhex("-0x1.2444f2p-4")

# Activation functions by kt_activation's numbers.
_SILU, _GELU_TANH = 0, 1


@emitted
def _quantize_block(
    typing: Any, block: Any, x: Any, x_at: Any, q: Any, q_at: Any, d: Any, d_at: Any, sums: Any, sums_at: Any
) -> Any:
    """One block (a constant, 32 or 256 numbers) of float32 x to int16 q, its float32 d, and sums of 32 q."""
    length = block.literal_value

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        source, codes, scale, totals = (
            Memory.of(context, builder, signature.args[i], args[i], args[i + 1]) for i in (1, 3, 5, 7)
        )
        magnitudes = [source.load(_I32, 4 * k, 16) & 0x7FFFFFFF for k in range(0, length, 16)]
        largest = reduce(lambda a, b: a.intrinsic("umax", b), magnitudes).intrinsic("vector.reduce.umax")
        amax = largest.as_floats()
        finite = largest.compare("<", _INFINITY)
        normal = finite & amax.compare(">=", _TINY)
        usual = normal.choose(amax / 127.0, amax.constant(0.0))
        scale.store(finite.choose(usual, largest.constant(_INFINITY | 0x400000).as_floats()))
        factor = normal.choose(amax.constant(127.0) / amax, amax.constant(0.0)).splat(16)
        # Not x * 0 for a block without a scale, which would be NaN where x is.
        kept = normal.choose(-1, largest.constant(0)).splat(16)
        for j in range(length // 32):
            halves = []
            for k in (32 * j, 32 * j + 16):
                rounded = source.load(_FLOAT, 4 * k, 16) * factor + _ROUNDER
                halves.append((rounded.as_ints() - _ROUNDER_BITS) & kept)
                codes.store(halves[-1].narrow(16), 2 * k)
            totals.store((halves[0] + halves[1]).sum().narrow(16), 2 * j)
        return context.get_dummy_value()

    place = types.intp
    return types.none(block, x, place, q, place, d, place, sums, place), emit


@cache
def quantize(block: int) -> Any:
    """The kernel for blocks of 32 or 256 numbers.

    quantize(x, first, last, q, d, sums): blocks first..last-1 of x float32 to q int16, d float32 (one a block) and sums
    int16 (one for 32 numbers); all flat.
    """
    shares = block // 32

    @jit
    def kernel(x: Any, first: Any, last: Any, q: Any, d: Any, sums: Any) -> None:
        mode = swap_float_mode(STANDARD_FLOATS)
        for b in range(first, last):
            _quantize_block(block, x, b * block, q, b * block, d, b, sums, b * shares)
        swap_float_mode(mode)

    return kernel


def _exponential(x: Lanes) -> Lanes:
    """e^x within 1 ulp; 0 below the normal numbers, infinity above the largest, NaN for NaN."""

    def by(factor: Lanes, number: float, addend: Lanes) -> Lanes:
        return factor.fma(x.constant(number), addend)

    shifted = by(x, _LOG2_E, x.constant(_ROUNDER))
    n = shifted - _ROUNDER
    r = by(n, -_LN2_LOW, by(n, -_LN2_HIGH, x))
    p = x.constant(_EXP_TERMS[0])
    for term in (*_EXP_TERMS[1:], 1.0, 1.0):
        p = p.fma(r, x.constant(term))
    y = (p.as_ints() + (shifted.as_ints() << 23)).as_floats()
    y = x.compare(">=", _EXP_LOW).choose(y, x.constant(0.0))
    return x.compare("<=", _EXP_HIGH).choose(y, x + float("inf"))


def _activation(kind: int, x: Lanes) -> Lanes:
    """SiLU, or GELU in its tanh form: both are x / (1 + e^u)."""
    u = -x if kind == _SILU else x * x.constant(_GELU_C3).fma(x * x, x.constant(_GELU_C1))
    return x / (_exponential(u) + 1.0)


@emitted
def _activate(typing: Any, kind: Any, gated: Any, number: Any, x: Any, at: Any, up: Any, up_at: Any) -> Any:
    """x = act(x), times up when `gated`, for `number` float32 numbers; the first three are constants."""
    function, count = kind.literal_value, number.literal_value

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        target, other = (Memory.of(context, builder, signature.args[i], args[i], args[i + 1]) for i in (3, 5))
        y = _activation(function, target.load(_FLOAT, 0, count))
        target.store(y * other.load(_FLOAT, 0, count) if gated.literal_value else y)
        return context.get_dummy_value()

    return types.none(kind, gated, number, x, types.intp, up, types.intp), emit


@cache
def activate(kind: int, gated: bool) -> Any:
    """The kernel of one activation function, by kt_activation's number.

    activate(x, first, last, up): x[i] = act(x[i]) * up[i] for i in first..last-1, or act(x[i]) when not `gated` (up is
    then not read); float32, flat.
    """
    multiplied = int(gated)

    @jit
    def kernel(x: Any, first: Any, last: Any, up: Any) -> None:
        mode = swap_float_mode(STANDARD_FLOATS)
        whole = last - (last - first) % 16
        for i in range(first, whole, 16):
            _activate(kind, multiplied, 16, x, i, up, i)
        for i in range(whole, last):
            _activate(kind, multiplied, 1, x, i, up, i)
        swap_float_mode(mode)

    return kernel


@emitted
def _fma(typing: Any, factor: Any, other: Any, addend: Any) -> Any:
    """factor * other + addend in float32, rounded once."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        a, b, c = (Lanes(builder, value) for value in args)
        return a.fma(b, c).value

    return types.float32(types.float32, types.float32, types.float32), emit


@jit
def weighted_sums(results: Any, place: Any, weights: Any, out: Any) -> None:
    """out[t] = sum over k ascending of weights[t, k] * results[place[t, k]], one fma each, from +0.

    results float32 [P, H], place int64 [T, K] (below 0: the pair is left out), weights float32 [T, K], out [T, H].
    """
    mode = swap_float_mode(STANDARD_FLOATS)
    for t in range(place.shape[0]):
        for h in range(out.shape[1]):
            out[t, h] = float32(0)
        for k in range(place.shape[1]):
            p = place[t, k]
            if p >= 0:
                for h in range(out.shape[1]):
                    out[t, h] = _fma(weights[t, k], results[p, h], out[t, h])
    swap_float_mode(mode)
