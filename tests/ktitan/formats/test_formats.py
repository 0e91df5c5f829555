"""Sizes and numbers of every format against the packages that define them."""

import gguf
import numpy as np
import pytest
import torch

from ktitan.errors import FormatError
from ktitan.formats import find_format, formats
from ktitan.formats.ggml import GGML_FORMATS
from ktitan.formats.plain import PLAIN_DTYPES, plain_name


@pytest.mark.parametrize("name", list(GGML_FORMATS))
def test_block_formats_agree_with_gguf(name):
    kind = gguf.GGMLQuantizationType[name.upper()]
    one = find_format(name, "test")
    assert (one.block_elements, one.block_bytes) == gguf.GGML_QUANT_SIZES[kind]
    rows = np.random.default_rng().integers(0, 256, (3, 2 * one.block_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        numbers = one.dequantize(rows)
        wanted = gguf.quants.dequantize(rows, kind)
    assert numbers.shape == (3, 2 * one.block_elements)
    assert np.array_equal(numbers, wanted, equal_nan=True)


@pytest.mark.parametrize("name", list(PLAIN_DTYPES))
def test_plain_formats_are_their_dtype(name):
    one = find_format(name, "test")
    assert one.torch_dtype is PLAIN_DTYPES[name]
    assert one.tensor_bytes((3, 5)) == 15 * torch.empty(0, dtype=one.torch_dtype).element_size()
    assert plain_name(one.torch_dtype) == name


def test_bits_per_weight():
    assert formats.get("q4_k").bits_per_weight == 4.5
    assert formats.get("mxfp4").bits_per_weight == 4.25
    assert formats.get("bf16").bits_per_weight == 16


def test_rows_must_be_whole_blocks():
    assert formats.get("q4_k").tensor_bytes((2, 512)) == 2 * 2 * 144
    with pytest.raises(FormatError, match="300 numbers is not a whole number of q4_k blocks of 256"):
        formats.get("q4_k").row_bytes(300)


def test_unknown_formats_name_the_tensor_and_the_known_ones():
    with pytest.raises(FormatError) as caught:
        find_format("q9_z", "blk.0.weight")
    assert caught.value.where == "blk.0.weight" and "q4_k" in caught.value.remedy
