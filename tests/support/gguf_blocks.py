"""Random rows of every packed ggml type: any bytes are a valid block, and scales are set to give sane numbers."""

import gguf
import numpy as np

PACKED = sorted(
    kind.name.lower()
    for kind in gguf.quants._type_traits
    if kind.name not in ("F32", "F16", "BF16") and kind in gguf.GGML_QUANT_SIZES
)

# Byte offset of the f16 scale of a block, and of the f16 offset or scale of mins where there is one.
_SCALES = {
    "q4_0": (0, None),
    "q4_1": (0, 2),
    "q5_0": (0, None),
    "q5_1": (0, 2),
    "q8_0": (0, None),
    "q2_k": (80, 82),
    "q3_k": (108, None),
    "q4_k": (0, 2),
    "q5_k": (0, 2),
    "q6_k": (208, None),
    "iq2_xxs": (0, None),
    "iq2_xs": (0, None),
    "iq2_s": (0, None),
    "iq3_xxs": (0, None),
    "iq3_s": (0, None),
    "iq1_s": (0, None),
    "iq4_nl": (0, None),
    "iq4_xs": (0, None),
    "tq1_0": (52, None),
    "tq2_0": (64, None),
}
# Mean of the unsigned numbers times their scales: the offset that centres a type with mins.
_CENTRE = {"q4_1": 7.5, "q5_1": 15.5}


def ggml_type(name):
    return gguf.GGMLQuantizationType[name.upper()]


def dequantized(name, rows):
    """uint8 [..., row_bytes] -> float32 [..., columns], by gguf's reference."""
    return gguf.quants.dequantize(rows, ggml_type(name))


def random_rows(name, shape, rng, spread=0.1):
    """uint8 [*shape[:-1], row_bytes] of random blocks, whose numbers have a standard deviation near `spread`."""
    elements, size = gguf.GGML_QUANT_SIZES[ggml_type(name)]
    assert shape[-1] % elements == 0, f"{name} rows are multiples of {elements}"
    count = int(np.prod(shape[:-1])) * (shape[-1] // elements)
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    _set_scales(name, blocks, np.ones(count), rng)
    unit = float(dequantized(name, blocks).std())
    _set_scales(name, blocks, spread / unit * rng.uniform(0.7, 1.4, count), rng)
    return blocks.reshape(*shape[:-1], -1)


def _set_scales(name, blocks, scale, rng):
    if name == "mxfp4":
        blocks[:, 0] = np.clip(127 + np.round(np.log2(scale)), 1, 254)
        return
    if name == "nvfp4":
        codes = np.log2(np.maximum(scale, 2.0**-8))[:, None] + rng.integers(-1, 2, (len(blocks), 4))
        exponent = np.clip(np.round(codes) + 7, 1, 14).astype(np.uint8)
        blocks[:, :4] = (exponent << 3) | (blocks[:, :4] & 7)
        return
    if name == "iq1_m":
        _set_spread_half(blocks, scale.astype(np.float16))
        return
    first, second = _SCALES[name]
    put_half(blocks, first, scale)
    if name in _CENTRE:
        put_half(blocks, second, -_CENTRE[name] * scale)
    elif second is not None:
        put_half(blocks, second, scale * rng.uniform(0.5, 1.5, len(blocks)))


def put_half(blocks, offset, values):
    """Write float16 numbers at a byte offset of each block."""
    blocks[:, offset : offset + 2] = np.asarray(values, np.float16).reshape(-1, 1).view(np.uint8)


def _set_spread_half(blocks, scale):
    """IQ1_M keeps its scale in the top nibbles of four 16-bit words at byte 48."""
    bits = scale.view(np.uint16)
    words = blocks[:, 48:56].copy().view(np.uint16)
    for place in range(4):
        words[:, place] = (words[:, place] & 0x0FFF) | (((bits >> (4 * place)) & 0xF) << 12).astype(np.uint16)
    blocks[:, 48:56] = words.view(np.uint8)
