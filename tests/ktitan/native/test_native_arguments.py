"""Arguments that a backend refuses before any address is used; matrices and banks that cannot be."""

import copy
import pickle
import re

import gguf
import pytest
import torch

from ktitan.errors import FormatError, UnsupportedError
from ktitan.formats import find_format
from ktitan.native import ExpertBank, PackedMatrix
from ktitan.native.arguments import check_experts, check_linear, check_rows
from ktitan.native.matrix import FLOAT_FORMATS, GGML_TYPES, activation_block

from support.packed_matrices import FORMATS


def matrix(format="q8_0", rows=4, columns=32):
    made = PackedMatrix(format, rows, columns)
    made.data[...] = 1
    return made


def refuses(pattern, check, *args):
    with pytest.raises(UnsupportedError, match=pattern) as caught:
        check(*args)
    assert caught.value.remedy


def linear_arguments(**changes):
    given = {
        "x": torch.zeros(3, 32),
        "matrix": matrix(),
        "bias": torch.zeros(4),
        "activations": "int8",
        "out": torch.zeros(3, 4),
    }
    return tuple((given | changes).values())


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ({"x": torch.zeros(3, 64)[:, ::2]}, "x is not contiguous"),
        ({"x": torch.zeros(3, 31)}, r"x has shape \[3, 31\]"),
        ({"x": torch.zeros(32)}, r"x has shape \[32\]"),
        ({"x": torch.zeros(3, 32, dtype=torch.float64)}, "x is torch.float64"),
        ({"x": torch.zeros(3, 32, dtype=torch.int8)}, "x is torch.int8"),
        ({"x": torch.zeros(3, 32, device="meta")}, "x is on meta"),
        ({"x": torch.zeros(3, 32).to_sparse()}, "x is not contiguous"),
        ({"bias": torch.zeros(4, dtype=torch.bfloat16)}, "bias is torch.bfloat16"),
        ({"bias": torch.zeros(5)}, r"bias has shape \[5\]"),
        ({"out": torch.zeros(4, 3).T}, "out is not contiguous"),
        ({"out": torch.zeros(3, 4, dtype=torch.float16)}, "out is torch.float16"),
        ({"out": torch.zeros(2, 4)}, r"out has shape \[2, 4\]"),
        ({"out": torch.zeros(3, 4, device="meta")}, "out is on meta"),
        ({"activations": "int4"}, "activations 'int4'"),
    ],
)
def test_linear_refuses(changes, pattern):
    refuses(pattern, check_linear, *linear_arguments(**changes))


def test_linear_takes_what_fits():
    assert check_linear(*linear_arguments()) == 3
    assert check_linear(*linear_arguments(bias=None, x=torch.zeros(0, 32), out=torch.zeros(0, 4))) == 0


def test_out_must_not_overlap_the_input():
    both = torch.zeros(200)
    x, out = both[:96].view(3, 32), both[90:102].view(3, 4)
    refuses("out overlaps", check_linear, x, matrix(), None, "int8", out)
    check_linear(x, matrix(), None, "int8", both[96:108].view(3, 4))


def bank(**changes):
    given = {
        "experts": 2,
        "gate": matrix("q8_0", 2 * 64, 32),
        "up": matrix("q8_0", 2 * 64, 32),
        "down": matrix("q8_0", 2 * 32, 64),
        "activation": "silu",
    }
    return ExpertBank(**(given | changes))


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ({"hidden": torch.zeros(3, 33)}, r"hidden has shape \[3, 33\]"),
        ({"index": torch.zeros(3, 2, dtype=torch.int32)}, "index is torch.int32"),
        ({"index": torch.zeros(2, 2, dtype=torch.int64)}, r"index has shape \[2, 2\]"),
        ({"index": torch.zeros(2, 3, dtype=torch.int64).T}, "index is not contiguous"),
        ({"weights": torch.zeros(3, 2, dtype=torch.bfloat16)}, "weights is torch.bfloat16"),
        ({"weights": torch.zeros(3, 1)}, r"weights has shape \[3, 1\]"),
        ({"out": torch.zeros(3, 32, dtype=torch.bfloat16)}, "out is torch.bfloat16"),
        ({"activations": ""}, "activations ''"),
    ],
)
def test_experts_refuse(changes, pattern):
    given = {
        "hidden": torch.zeros(3, 32),
        "index": torch.zeros(3, 2, dtype=torch.int64),
        "weights": torch.zeros(3, 2),
        "bank": bank(),
        "activations": "int8",
        "out": torch.zeros(3, 32),
    }
    assert check_experts(*given.values()) == (3, 2)
    refuses(pattern, check_experts, *(given | changes).values())


def test_rows_refuse():
    assert check_rows(matrix(), torch.tensor([1, 2]), torch.zeros(2, 32)) == 2
    refuses("ids is torch.int32", check_rows, matrix(), torch.tensor([1], dtype=torch.int32), torch.zeros(1, 32))
    refuses(r"ids has shape \[1, 1\]", check_rows, matrix(), torch.tensor([[1]]), torch.zeros(1, 32))
    refuses("out is torch.bfloat16", check_rows, matrix(), torch.tensor([1]), torch.zeros(1, 32).bfloat16())


@pytest.mark.gpu
def test_a_cuda_tensor_is_refused():
    refuses("x is on cuda", check_linear, *linear_arguments(x=torch.zeros(3, 32, device="cuda")))


@pytest.mark.parametrize("name", GGML_TYPES)
def test_type_numbers_are_ggmls(name):
    assert GGML_TYPES[name] == int(gguf.GGMLQuantizationType[name.upper()])


@pytest.mark.parametrize("name", GGML_TYPES)
def test_headers_know_the_same_formats(repository, name):
    """formats.h repeats sizes that the Python side takes from gguf."""
    text = (repository / "csrc/cpu/formats.h").read_text("utf-8")
    found = re.search(rf"KT_FORMAT\(KT_{name.upper()}, \w+, (\d+), (\d+),", text)
    stored = find_format(name, "")
    assert (int(found[1]), int(found[2])) == (stored.block_elements, stored.block_bytes)
    numbers = (repository / "csrc/cpu/kernels.h").read_text("utf-8")
    assert re.search(rf"KT_{name.upper()} = {GGML_TYPES[name]},", numbers)


def test_every_packed_type_of_gguf_has_a_kernel():
    assert {*FORMATS} == {*GGML_TYPES}
    assert {name for name in FORMATS if activation_block(name) == 32} == {
        *FLOAT_FORMATS,
        *("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "mxfp4", "nvfp4"),
    }


def test_a_matrix_is_aligned_and_sized():
    for rows, columns in ((1, 256), (3, 512), (0, 256)):
        made = PackedMatrix("q4_k", rows, columns)
        assert made.data.shape == (rows, columns // 256 * 144) and made.nbytes == made.data.nbytes
        assert made.data.flags.c_contiguous and made.data.flags.writeable
        assert made.address == made.data.ctypes.data and (made.address % 64 == 0 or rows == 0)


def test_a_matrix_copies_by_reference_and_pickles_by_value():
    made = matrix()
    assert copy.deepcopy([made])[0] is made
    other = pickle.loads(pickle.dumps(made))
    assert other is not made and (other.data == made.data).all() and other.address % 64 == 0
    assert (other.format, other.rows, other.columns) == (made.format, made.rows, made.columns)


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (("q4_k", 4, 255), "not a whole number of q4_k blocks"),
        (("q8_0", 4, 48), "not a whole number of q8_0 blocks"),
        (("f8_e4m3", 4, 32), "'f8_e4m3'"),
        (("q9_9", 4, 32), "'q9_9'"),
        (("f32", -1, 32), "-1 x 32"),
        (("f32", 1, 0), "1 x 0"),
    ],
)
def test_matrices_that_cannot_be(arguments, pattern):
    with pytest.raises(FormatError, match=pattern) as caught:
        PackedMatrix(*arguments)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ({"activation": "relu"}, "'relu'"),
        ({"experts": 3}, "for 3 experts"),
        ({"experts": 0}, "for 0 experts"),
        ({"gate": matrix("q8_0", 64, 32)}, r"gate is \[64, 32\]"),
        ({"down": matrix("q8_0", 64, 32)}, r"is \["),
        ({"up_bias": torch.zeros(2, 32)}, "up_bias"),
        ({"down_bias": torch.zeros(2, 32, dtype=torch.float16)}, "down_bias is torch.float16"),
        ({"gate": None, "gate_bias": torch.zeros(2, 64)}, "without a gate"),
        ({"gate_bias": torch.zeros(64, 2).T}, "not contiguous"),
    ],
)
def test_banks_that_cannot_be(changes, pattern):
    with pytest.raises(FormatError, match=pattern) as caught:
        bank(**changes)
    assert caught.value.remedy


def test_a_bank_knows_its_sizes():
    made = bank(down_bias=torch.zeros(2, 32))
    assert (made.hidden, made.intermediate) == (32, 64)
    assert made.nbytes == 3 * 2 * 64 * 34 + 256
