"""Formats whose bytes are a torch dtype's own: floats, integers and booleans."""

from __future__ import annotations

import torch

from ktitan.formats.base import Format, register_format

__all__ = ["PLAIN_DTYPES", "plain_name"]

# Names follow safetensors and ggml, in lower case; the two agree where both have the type.
PLAIN_DTYPES: dict[str, torch.dtype] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8_e4m3": torch.float8_e4m3fn,
    "f8_e5m2": torch.float8_e5m2,
    "f8_e8m0": torch.float8_e8m0fnu,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "u16": torch.uint16,
    "u32": torch.uint32,
    "u64": torch.uint64,
    "bool": torch.bool,
}

_NAMES = {dtype: name for name, dtype in PLAIN_DTYPES.items()}

for _name, _dtype in PLAIN_DTYPES.items():
    register_format(Format(_name, block_elements=1, block_bytes=_dtype.itemsize, torch_dtype=_dtype))


def plain_name(dtype: torch.dtype) -> str:
    """The format name of a torch dtype; complex and other dtypes go by torch's own name."""
    return _NAMES.get(dtype, str(dtype).removeprefix("torch."))
