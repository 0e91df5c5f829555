"""ggml's block formats, with the `gguf` package's own dequantisers as the reference.

Block sizes and layouts: https://github.com/ggml-org/llama.cpp, ggml/src/ggml-common.h, mirrored by `gguf`.
"""

from __future__ import annotations

import functools

import gguf
import numpy as np

from ktitan.formats.base import Format, register_format
from ktitan.formats.plain import PLAIN_DTYPES

__all__ = ["GGML_FORMATS"]


def _dequantize(kind: gguf.GGMLQuantizationType, rows: np.ndarray) -> np.ndarray:
    """Dequantise uint8 [rows, row_bytes] to float32 [rows, columns] with gguf's reference."""
    return gguf.quants.dequantize(rows, kind)


def _packed_formats() -> dict[str, Format]:
    table = {}
    for kind, (elements, size) in gguf.GGML_QUANT_SIZES.items():
        name = kind.name.lower()
        # Types without a dequantiser (Q8_1, Q8_K) exist only inside kernels, never in files.
        if name in PLAIN_DTYPES or kind not in gguf.quants._type_traits:
            continue
        table[name] = register_format(Format(name, elements, size, None, functools.partial(_dequantize, kind)))
    return table


GGML_FORMATS: dict[str, Format] = _packed_formats()
