"""Writes docs/formats.md from the registry of formats and the kernels' tables.

python docs/make_formats.py           # or: make docs
"""

from __future__ import annotations

from pathlib import Path

import gguf

from ktitan.formats import Format, find_format, formats
from ktitan.formats.ggml import GGML_FORMATS
from ktitan.formats.plain import PLAIN_DTYPES
from ktitan.native.matrix import FLOAT_FORMATS, GGML_TYPES, activation_block
from ktitan.native.numba_backend import NumbaBackend
from ktitan.native.slow import SLOW_KERNEL

# Dtypes of safetensors (0.8) that are no torch dtype that ktitan computes from.
REFUSED = ("C64", "F4", "F6_E2M3", "F6_E3M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
PAGE = Path(__file__).with_name("formats.md")
TEXT = """# Formats

Written by `docs/make_formats.py` from the tables that ktitan computes with; do not edit, run `make docs`.

## Files

| file | read |
|---|---|
| safetensors: one file, or shards by `model.safetensors.index.json` | yes, every dtype of the table below |
| GGUF 2 and 3, little endian; one file, or shards `NAME-00001-of-0000N.gguf` (give any of them, or the folder) | yes, every type of the tables below |
| GGUF 1, GGUF big endian | no: convert the file again, or with gguf's `gguf-convert-endian` |
| `.bin`, `.pth` (pickled) | no: they can run code. Save the model with transformers' `save_pretrained` |
| packed HuggingFace checkpoints: `quantization_config` in config.json (GPTQ, AWQ, FP8, compressed-tensors, bitsandbytes, MXFP4) | not in this version, refused with the `quant_method`; a GGUF beside the folder (`gguf_path`) takes their place |
| Titan Native: a folder that `ktitan convert` made, with any format of these tables; [native.md](native.md) has the bytes | yes |

Headers are checked against the file's size before anything is read; what is wrong with one is in
[errors.md](errors.md#formaterror).

## Quantised GGUF types

On the CPU such a matrix stays in memory as it is stored, and a kernel multiplies it as it is (`linear.cpu`, `experts.cpu`,
`embedding.cpu`). The native library has a kernel for every type, in plain C++ (generic), AVX2 and AVX-512 with VNNI, with the
same bits in all three; the best one that the processor has computes, and `KTITAN_CPU_ISA` lowers the choice. Where the
library is not built numba computes, with the same bits, and for types without a kernel there the slow path: gguf's own
dequantiser, some rows at a time, with inputs as they are. Kernels round inputs to 8 bits per row and block (kwarg
`activations`: `float32` does not, and is slow).

On a GPU there are no kernels yet: a matrix is dequantised while it is read, to the dtype that the model computes in.

| type | bits per weight | block: numbers, bytes | inputs share a scale | without the native library |
|---|---|---|---|---|
{packed}
Refused by name, since package gguf has no dequantiser to compare with: {unread} (Q8_1 and Q8_K exist inside kernels only).

## Plain numbers

Any of them may be stored; floats become the dtype that the model computes in as they are read. On the CPU PyTorch multiplies
them (`linear.torch` and its like; the packaged rules set `only_packed`); without that kwarg the native kernels multiply
{floats} as they are, too.

| dtype | bytes | in safetensors | in GGUF | CPU kernel of our own |
|---|---|---|---|---|
{plain}
F8 numbers are taken as they stand: a checkpoint whose F8 weights have scales beside them is a packed one. Of safetensors'
dtypes {refused} are refused by name.
"""


def make_page() -> str:
    """The text of docs/formats.md."""
    numba = NumbaBackend(1)
    unread = [kind.name for kind in gguf.GGMLQuantizationType if formats.find(kind.name.lower()) is None]
    packed = sorted((find_format(name, "docs") for name in GGML_FORMATS), key=lambda one: -one.bits_per_weight)
    return TEXT.format(
        packed="".join(packed_row(one, numba) for one in packed),
        refused=", ".join(REFUSED),
        unread=", ".join(unread),
        floats=", ".join(name.upper() for name in sorted(FLOAT_FORMATS)),
        plain="".join(plain_row(find_format(name, "docs")) for name in PLAIN_DTYPES),
    )


def packed_row(one: Format, numba: NumbaBackend) -> str:
    """One quantised type."""
    if one.name not in GGML_TYPES:
        raise SystemExit(f"{one.name} has no native kernel: the page says that all types have one")
    fallback = numba.kernel(one.name, "int8")
    without = "slow path" if fallback == SLOW_KERNEL else "numba"
    block = f"{one.block_elements}, {one.block_bytes}"
    return f"| {one.name.upper()} | {one.bits_per_weight:.6g} | {block} | {activation_block(one.name)} | {without} |\n"


def plain_row(one: Format) -> str:
    """One dtype."""
    in_gguf = "yes" if one.name.upper() in gguf.GGMLQuantizationType.__members__ else ""
    kernel = "yes" if one.name in FLOAT_FORMATS else ""
    return f"| {one.name.upper()} | {one.block_bytes} | yes | {in_gguf} | {kernel} |\n"


if __name__ == "__main__":
    PAGE.write_text(make_page(), "utf-8")
