"""numba's products, bit for bit: the contract in NumPy, and the native library where there is one."""

import numpy as np
import pytest
import torch

from ktitan.formats import find_format
from ktitan.native import library, native_reason
from ktitan.native.cpu import CpuBackend
from ktitan.native.matrix import activation_block

from support.contract_bits import HALVES, reference_floats, reference_packed, same_bits, wild_matrix, wild_rows
from support.packed_matrices import FORMATS

pytest.importorskip("numba", reason="numba is not installed, so there is no such backend")
from ktitan.native.numba_backend import NumbaBackend

FLOATS = ("f32", "f16", "bf16")
PACKED = tuple(HALVES)
SLOW = tuple(name for name in FORMATS if name not in FLOATS + PACKED)


@pytest.fixture(scope="module")
def two():
    """The backend with two threads."""
    return NumbaBackend(2)


def linear(backend, x, matrix, bias=None, activations="int8"):
    out = torch.full((len(x), matrix.rows), float("nan"), dtype=x.dtype)
    backend.linear(x, matrix, bias, activations, out)
    return out


@pytest.mark.parametrize("name", PACKED)
def test_packed_products_follow_the_contract(two, rng, name):
    short = 256 if activation_block(name) == 256 else 96
    for rows, columns, count in ((7, 512, 1), (3, short, 6)):
        matrix, x = wild_matrix(name, rows, columns, rng), wild_rows(rng, count, columns)
        x[0, :32] *= 1e-33  # where blocks have 32 numbers, one that counts as zero
        expected = torch.from_numpy(reference_packed(name, matrix.data, x.numpy()))
        assert same_bits(linear(two, x, matrix), expected)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("columns", [1, 16, 37])
def test_float_products_follow_the_contract(two, rng, name, columns):
    matrix, x = wild_matrix(name, 5, columns, rng), wild_rows(rng, 6, columns)
    weights = torch.from_numpy(matrix.data).view(find_format(name, "").torch_dtype).float().numpy()
    assert same_bits(linear(two, x, matrix), torch.from_numpy(reference_floats(weights, x.numpy())))


def test_the_comparison_bites(two, rng):
    matrix, x = wild_matrix("q4_k", 4, 512, rng), wild_rows(rng, 2, 512)
    expected = torch.from_numpy(reference_packed("q4_k", matrix.data, x.numpy()))
    matrix.data[:, 0] ^= 1  # the last bit of a scale
    assert not same_bits(linear(two, x, matrix), expected)


@pytest.mark.parametrize("name", [*PACKED, *SLOW])
def test_float32_activations_meet_the_dequantised_numbers(two, rng, name):
    matrix, x = wild_matrix(name, 6, 512, rng), wild_rows(rng, 3, 512)
    weights = find_format(name, "").dequantize(matrix.data)
    expected = torch.from_numpy(reference_floats(weights, x.numpy()))
    assert same_bits(linear(two, x, matrix, None, "float32"), expected)
    if name in SLOW:
        assert same_bits(linear(two, x, matrix), expected)


@pytest.mark.parametrize("name", [*FLOATS, *PACKED, "iq4_xs"])
@pytest.mark.parametrize("activations", ["int8", "float32"])
def test_results_do_not_depend_on_batch_or_threads(two, rng, name, activations):
    matrix, x = wild_matrix(name, 700, 512, rng), wild_rows(rng, 9, 512, torch.bfloat16)
    single = torch.cat([linear(NumbaBackend(1), row[None], matrix, None, activations) for row in x])
    assert same_bits(linear(two, x, matrix, None, activations), single)


def test_more_rows_than_a_pass(two, rng):
    matrix, x = wild_matrix("q4_0", 20, 64, rng), wild_rows(rng, 600, 64)
    parts = [linear(two, x[i : i + 50], matrix) for i in range(0, 600, 50)]
    assert same_bits(linear(two, x, matrix), torch.cat(parts))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_bias_is_added_before_the_one_rounding(two, rng, dtype):
    matrix, x, bias = wild_matrix("q8_0", 40, 64, rng), wild_rows(rng, 5, 64, dtype), torch.randn(40)
    wide = linear(two, x.float(), matrix)
    assert same_bits(linear(two, x, matrix, bias), (wide + bias).to(dtype))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_block_that_is_not_finite_spoils_its_row_only(two, rng, bad):
    matrix, x = wild_matrix("q4_k", 8, 512, rng), wild_rows(rng, 5, 512)
    clean = linear(two, x, matrix)
    x[2, 300] = bad
    result = linear(two, x, matrix)
    assert result[2].isnan().all()
    assert same_bits(result[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])


def test_subnormals_are_kept_whatever_the_process_asked_for(two, rng):
    matrix, x = wild_matrix("f32", 700, 40, rng), torch.from_numpy(rng.integers(1, 1 << 22, (5, 40), np.int32))
    x = x.view(torch.float32)  # all of them subnormal
    kept = linear(two, x, matrix)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        flushed, asked = linear(NumbaBackend(2), x, matrix), x[0] * torch.ones(40)
    finally:
        torch.set_flush_denormal(False)
    assert same_bits(flushed, kept)
    assert (kept != 0).any()
    assert (asked == 0).all()  # and what torch computes is still flushed


def test_nothing_to_do(two, rng):
    assert linear(two, torch.empty(0, 64), wild_matrix("q8_0", 4, 64, rng)).shape == (0, 4)
    assert linear(two, torch.empty(2, 64), wild_matrix("q8_0", 0, 64, rng)).shape == (2, 0)


@pytest.mark.parametrize("isa", library.ISAS)
@pytest.mark.parametrize("name", [*FLOATS, *PACKED])
def test_products_have_the_bits_of_the_native_library(two, rng, name, isa):
    if native_reason() is not None:
        pytest.skip(f"nothing to compare with: the native library is {native_reason()}")
    native = CpuBackend(library.loaded())
    with library.use_isa(isa) as used:
        if used != isa:
            pytest.skip(f"this processor has no {isa}")
        for columns, count, dtype in ((256, 1, torch.float32), (768, 6, torch.bfloat16), (768, 35, torch.float16)):
            columns += 5 if name in FLOATS else 0
            matrix, x, bias = (
                wild_matrix(name, 33, columns, rng),
                wild_rows(rng, count, columns, dtype),
                torch.randn(33),
            )
            x[0, rng.integers(columns)] = float(rng.choice([0, np.inf, np.nan, 6e4]))
            for activations in ("int8", "float32"):
                arguments = x, matrix, bias, activations
                assert same_bits(linear(two, *arguments), linear(native, *arguments)), (columns, activations)
