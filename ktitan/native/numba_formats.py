"""The packed formats that numba kernels read: how a block's bytes become vectors.

Every format becomes int16 weights with the integer scales multiplied in, so that a block's exact sums are int16 x int16
-> int32 dots: S = sum of weight * q, M = sum of min * (sum of 32 q). Layouts: ggml (MIT), ggml-common.h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from ktitan.native.numba_lanes import Lanes, Memory, join

__all__ = ["LAYOUTS", "Block", "Layout", "f16_to_f32"]

_I8, _I16, _I32 = (ir.IntType(bits) for bits in (8, 16, 32))


@dataclass(frozen=True)
class Block:
    """A block's numbers in IR.

    Attributes:
        weights: vectors of 32 int16 in the order of columns.
        scale: d, the bits of a half float.
        mins: int16 for each 32 columns, or None when the format has no offsets.
        offset: the factor that is subtracted with the mins, the bits of a half float; None without.
    """

    weights: list[Lanes]
    scale: Lanes
    mins: Lanes | None = None
    offset: Lanes | None = None


@dataclass(frozen=True)
class Layout:
    """One format: sizes, and how a block is read.

    Attributes:
        block: numbers in a block.
        block_bytes: bytes of a block.
        offsets: whether weights have offsets, which picks the formula.
        read: emits the IR that reads the block at an address.
    """

    block: int
    block_bytes: int
    offsets: bool
    read: Callable[[Memory], Block]


def f16_to_f32(half: Lanes) -> Lanes:
    """int16 bits of half floats -> float32, exact; a NaN stays a NaN. No hardware conversion is asked for."""
    bits = half.widen(32)
    sign, magnitude = (bits & 0x8000) << 16, bits & 0x7FFF
    rebiased = (magnitude << 13) + (112 << 23)
    subnormal = (magnitude.to_floats() * 2.0**-24).as_ints()
    finite = magnitude.compare("<", 0x400).choose(subnormal, rebiased)
    return (magnitude.compare(">=", 0x7C00).choose(rebiased + (112 << 23), finite) | sign).as_floats()


def _half(block: Memory, offset: int) -> Lanes:
    return block.load(_I16, offset)


def _nibbles(block: Memory, offset: int) -> Lanes:
    """16 bytes -> 32 int16: the low nibbles, then the high ones."""
    packed = block.load(_I8, offset, 16)
    return join(packed & 15, packed >> 4).widen(16)


def _q4_0(block: Memory) -> Block:
    return Block([_nibbles(block, 2) - 8], _half(block, 0))


def _q4_1(block: Memory) -> Block:
    # d * u + m is d * u - (-m) * 1, with the same bits; the topmost bit of a half is its sign.
    one = Lanes(block.builder, ir.Constant(_I16, 1))
    return Block([_nibbles(block, 4)], _half(block, 0), one, _half(block, 2) ^ 0x8000)


def _q8_0(block: Memory) -> Block:
    return Block([block.load(_I8, 2, 32).widen(16, signed=True)], _half(block, 0))


def _six_bit_scales(block: Memory, offset: int) -> tuple[Lanes, Lanes]:
    """12 bytes -> 8 scales and 8 mins as bytes; the upper two bits of the last four lie in the first eight bytes."""
    first, second, third = (block.load(_I32, offset + 4 * i) for i in range(3))
    scales = join(first & 0x3F3F3F3F, (third & 0x0F0F0F0F) | ((first >> 2) & 0x30303030))
    mins = join(second & 0x3F3F3F3F, ((third >> 4) & 0x0F0F0F0F) | ((second >> 2) & 0x30303030))
    return scales.cast(_I8, 8), mins.cast(_I8, 8)


def _q4_k(block: Memory) -> Block:
    scales, mins = _six_bit_scales(block, 4)
    # Two copies of a scale in 32 bits: spreading 32-bit lanes is one instruction where spreading 16-bit ones is three.
    twins = scales.widen(32) * 0x10001
    weights = []
    for pair in range(4):
        packed = block.load(_I8, 16 + 32 * pair, 32)
        for j, nibbles in enumerate((packed & 15, packed >> 4), 2 * pair):
            weights.append(nibbles.widen(16) * twins[[j] * 16].cast(_I16, 32))
    return Block(weights, _half(block, 0), mins.widen(16), _half(block, 2))


def _q6_k(block: Memory) -> Block:
    twins = (block.load(_I8, 192, 16).widen(32, signed=True) & 0xFFFF) * 0x10001
    weights = []
    for half in range(2):
        upper = block.load(_I8, 128 + 32 * half, 32)
        lower = [block.load(_I8, 64 * half + 32 * i, 32) for i in range(2)]
        for part in range(4):
            nibbles = lower[part % 2] >> 4 if part >= 2 else lower[part % 2] & 15
            codes = nibbles | (((upper >> (2 * part)) & 3) << 4)
            j = 8 * half + 2 * part
            weights.append((codes.widen(16) - 32) * twins[[j] * 8 + [j + 1] * 8].cast(_I16, 32))
    return Block(weights, _half(block, 208))


# By ggml's type numbers.
LAYOUTS: dict[int, Layout] = {
    2: Layout(32, 18, False, _q4_0),
    3: Layout(32, 20, True, _q4_1),
    8: Layout(32, 34, False, _q8_0),
    12: Layout(256, 144, True, _q4_k),
    14: Layout(256, 210, False, _q6_k),
}
