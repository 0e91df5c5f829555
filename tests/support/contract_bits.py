"""Matrices with scales of every size, and the arithmetic contract of csrc/cpu/README.md bit for bit, in NumPy."""

import numpy as np
import torch

from ktitan.formats import find_format
from ktitan.native.matrix import FLOAT_FORMATS, PackedMatrix, activation_block

from support.gguf_blocks import random_rows

# Where the half floats of a block lie, in the formats that numba has kernels for.
HALVES = {"q4_0": [0], "q4_1": [0, 2], "q8_0": [0], "q4_k": [0, 2], "q6_k": [208]}


def wild_matrix(name, rows, columns, rng):
    """Random bytes; the scales of the formats above span many powers of two, subnormal halves among them."""
    matrix, stored = PackedMatrix(name, rows, columns), find_format(name, "")
    if name in FLOAT_FORMATS:
        values = torch.from_numpy(rng.standard_normal((rows, columns), np.float32))
        matrix.data[...] = values.to(stored.torch_dtype).view(torch.uint8).numpy()
        return matrix
    if name not in HALVES:
        matrix.data[...] = random_rows(name, (rows, columns), rng)
        return matrix
    blocks = rng.integers(0, 256, (rows, columns // stored.block_elements, stored.block_bytes), np.uint8)
    for at in HALVES[name]:
        scales = rng.standard_normal(blocks.shape[:2]) * np.exp(rng.uniform(-14, 2, blocks.shape[:2]))
        blocks[:, :, at : at + 2] = scales.astype(np.float16)[..., None].view(np.uint8)
    matrix.data[...] = blocks.reshape(matrix.data.shape)
    return matrix


def wild_rows(rng, rows, columns, dtype=torch.float32):
    """Rows of activations of very different sizes."""
    sizes = np.exp(rng.uniform(-5, 5, (rows, 1)))
    return torch.from_numpy((rng.standard_normal((rows, columns)) * sizes).astype(np.float32)).to(dtype)


def same_bits(a, b):
    """Equal dtype and bits, where any NaN equals any other."""
    return a.dtype == b.dtype and torch.equal(_bits(a), _bits(b))


def _bits(x):
    kept = torch.where(torch.isnan(x), torch.full_like(x, float("nan")), x)
    return kept.view(torch.int32 if x.dtype == torch.float32 else torch.int16)


def fma(a, b, c):
    """float32 fma: the product is exact in 64 bits of mantissa; a second rounding of the sum is too rare to meet."""
    wide = [np.asarray(v, np.float32).astype(np.longdouble) for v in (a, b, c)]
    return (wide[0] * wide[1] + wide[2]).astype(np.float32)


def reference_quantized(x, block):
    """x [M, K] -> integers [M, blocks, block], d [M, blocks]."""
    blocks = x.reshape(len(x), -1, block)
    amax = np.abs(blocks).max(-1)
    usable = np.isfinite(amax) & (amax >= np.float32(1e-30))
    d = np.where(usable, amax / np.float32(127), np.where(np.isfinite(amax), np.float32(0), np.float32(np.nan)))
    with np.errstate(all="ignore"):
        factor = np.float32(127) / amax
        codes = np.rint(blocks * factor[..., None])
    return np.where(usable[..., None], codes, 0).astype(np.int64), d.astype(np.float32)


def reference_integers(name, data):
    """Blocks of a format -> (integer weights with their integer scales, d, mins per 32 or None, factor of the mins)."""
    stored = find_format(name, "")
    blocks = data.reshape(len(data), -1, stored.block_bytes)
    half = [blocks[..., at : at + 2].copy().view(np.float16)[..., 0].astype(np.float32) for at in HALVES[name]]
    body = blocks.astype(np.int64)
    if name == "q8_0":
        return blocks[..., 2:].view(np.int8).astype(np.int64), half[0], None, None
    if name in ("q4_0", "q4_1"):
        nibbles = body[..., 2 * len(half) :]
        codes = np.concatenate([nibbles & 15, nibbles >> 4], -1)
        if name == "q4_0":
            return codes - 8, half[0], None, None
        return codes, half[0], np.ones((*codes.shape[:2], 1), np.int64), -half[1]
    if name == "q4_k":
        packed, codes = body[..., 4:16], body[..., 16:].reshape(*body.shape[:2], 4, 32)
        first, second, third = (packed[..., i : i + 4] for i in (0, 4, 8))
        scale = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], -1)
        least = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], -1)
        codes = np.stack([codes & 15, codes >> 4], -2).reshape(*body.shape[:2], 8, 32)
        return (codes * scale[..., None]).reshape(*body.shape[:2], 256), half[0], least, half[1]
    low, high = body[..., :128].reshape(*body.shape[:2], 2, 2, 32), body[..., 128:192].reshape(*body.shape[:2], 2, 32)
    parts = [(low[..., i % 2, :] >> (4 * (i // 2)) & 15) | ((high >> (2 * i) & 3) << 4) for i in range(4)]
    codes = np.stack(parts, -2).reshape(*body.shape[:2], 16, 16) - 32
    scale = blocks[..., 192:208].view(np.int8).astype(np.int64)
    return (codes * scale[..., None]).reshape(*body.shape[:2], 256), half[0], None, None


def reference_packed(name, data, x):
    """The product [M, N] of the contract's table."""
    weights, d, mins, factor = reference_integers(name, data)
    q, d_a = reference_quantized(x, activation_block(name))
    total = np.einsum("nbk,mbk->mnb", weights, q).astype(np.float32)
    acc = np.zeros(total.shape[:2], np.float32)
    if mins is not None:
        sums = q.reshape(*q.shape[:2], -1, 32).sum(-1)
        least = np.einsum("nbj,mbj->mnb", mins, sums).astype(np.float32)
    for b in range(total.shape[-1]):
        if mins is None:
            acc = fma(d[None, :, b] * d_a[:, None, b], total[..., b], acc)
        else:
            term = fma(d[None, :, b], total[..., b], -(factor[None, :, b] * least[..., b]))
            acc = fma(d_a[:, None, b], term, acc)
    return acc


def reference_floats(weights, x):
    """Sixteen lanes, then the tree."""
    lanes = np.zeros((len(x), len(weights), 16), np.float32)
    for k in range(x.shape[1]):
        lanes[..., k % 16] = fma(weights[None, :, k], x[:, None, k], lanes[..., k % 16])
    for half in (8, 4, 2, 1):
        lanes = lanes[..., :half] + lanes[..., half : 2 * half]
    return lanes[..., 0]
