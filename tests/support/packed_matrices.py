"""Random packed matrices, and the arithmetic contract of csrc/cpu/README.md in NumPy, in float64 where it rounds."""

import numpy as np
import torch

from ktitan.native import PackedMatrix
from ktitan.native.matrix import FLOAT_FORMATS, GGML_TYPES, activation_block

from support.gguf_blocks import PACKED, dequantized, random_rows

FORMATS = [name for name in GGML_TYPES if name in FLOAT_FORMATS or name in PACKED]
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
BITS = {"f32": torch.int32, "f16": torch.int16, "bf16": torch.int16}
# Relative error of one float32 operation.
EPSILON = 2.0**-24


def packed_matrix(name, rows, columns, rng):
    """(matrix, its numbers as float64 [rows, columns])."""
    matrix = PackedMatrix(name, rows, columns)
    if name in FLOAT_FORMATS:
        stored = torch.from_numpy(rng.standard_normal((rows, columns)).astype(np.float32)).to(DTYPES[name])
        matrix.data[...] = stored.view(BITS[name]).numpy().view(np.uint8)
        return matrix, stored.double().numpy()
    matrix.data[...] = random_rows(name, (rows, columns), rng)
    return matrix, dequantized(name, matrix.data).astype(np.float64).reshape(rows, columns)


def quantized(x, name):
    """float32 [M, K] -> what the contract makes of it for weights of a format, as float64 [M, K]."""
    block = activation_block(name)
    blocks = x.reshape(len(x), -1, block)
    largest = np.abs(blocks).max(axis=2, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.rint(blocks * (np.float32(127) / largest))
    scale = largest / np.float32(127)
    q[np.broadcast_to(largest < 1e-30, q.shape)] = 0
    return (q.astype(np.float64) * scale).reshape(x.shape)


def product_and_bound(x, name, weights, arithmetic):
    """(x times weights^T in float64 [M, N], a bound on the rounding of a float32 sum of the same terms)."""
    seen = x.astype(np.float64) if arithmetic == "float32" or name in FLOAT_FORMATS else quantized(x, name)
    steps = 16 + x.shape[1] // 16
    return seen @ weights.T, 2 * steps * EPSILON * (np.abs(seen) @ np.abs(weights).T) + 1e-30


def activated(name, x):
    """SiLU, or GELU in its tanh form, in float64."""
    if name == "silu":
        return x / (1 + np.exp(-x))
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
