"""Products of the native library: values against NumPy in float64, and equal bits however they are cut."""

import numpy as np
import pytest
import torch

from ktitan.native import library
from ktitan.native.library import ISAS, use_isa

from support.packed_matrices import FORMATS, packed_matrix, product_and_bound

# Widths of weights: multiples of the format's block, among them widths that no vector register divides.
WIDTHS = {32: (32, 96, 160, 576, 768), 64: (64, 192, 576), 256: (256, 768, 1280), 1: (1, 7, 33, 96, 161, 576)}
BLOCKS = {"f32": 1, "f16": 1, "bf16": 1, "nvfp4": 64}
BLOCKS |= dict.fromkeys(("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "mxfp4"), 32)


def product(native, x, matrix, arithmetic="int8", bias=None):
    out = torch.full((len(x), matrix.rows), float("nan"), dtype=x.dtype)
    native.linear(x, matrix, bias, arithmetic, out)
    return out


def same_bits(a, b):
    """Equal bits, where any NaN equals any other."""
    kind = {4: torch.int32, 2: torch.int16}[a.element_size()]
    return bool(((a.view(kind) == b.view(kind)) | (a.isnan() & b.isnan())).all())


def odd_shapes(name, rng):
    for width in WIDTHS[BLOCKS.get(name, 256)]:
        yield int(rng.choice((1, 7, 33))), int(rng.choice((1, 3, 5, 16, 40))), width


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", FORMATS)
def test_values(native, rng, name, isa):
    with use_isa(isa):
        for rows, count, width in odd_shapes(name, rng):
            matrix, weights = packed_matrix(name, rows, width, rng)
            x = rng.standard_normal((count, width)).astype(np.float32) * 3
            for arithmetic in ("int8", "float32"):
                out = product(native, torch.from_numpy(x), matrix, arithmetic).numpy()
                wanted, bound = product_and_bound(x, name, weights, arithmetic)
                assert (np.abs(out - wanted) <= bound).all(), (rows, count, width, arithmetic)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("arithmetic", ["int8", "float32"])
def test_instruction_sets_agree(native, rng, two_threads, name, arithmetic):
    width = WIDTHS[BLOCKS.get(name, 256)][-1]
    matrix, _ = packed_matrix(name, 83, width, rng)
    for count in (1, 2, 3, 4, 9, 33):
        x = torch.from_numpy(rng.standard_normal((count, width)).astype(np.float32))
        with use_isa("generic"):
            wanted = product(native, x, matrix, arithmetic)
        for isa in ISAS[1:]:
            with use_isa(isa):
                assert same_bits(product(native, x, matrix, arithmetic), wanted), (isa, count)


@pytest.mark.parametrize("name", ["q4_k", "q6_k", "q8_0", "q4_1", "iq2_xs", "nvfp4", "bf16", "f32"])
def test_every_number_of_rows_and_threads(native, rng, two_threads, name):
    width = 512
    matrix, _ = packed_matrix(name, 300, width, rng)
    x = torch.from_numpy(rng.standard_normal((33, width)).astype(np.float32))
    library.set_threads(1)
    single = torch.cat([product(native, row[None], matrix) for row in x])
    for threads in (1, 2, 3):
        library.set_threads(threads)
        for count in range(1, 34):
            assert same_bits(product(native, x[:count].contiguous(), matrix), single[:count]), (threads, count)


def test_every_cut_of_a_prompt(native, rng):
    matrix, _ = packed_matrix("q4_k", 47, 512, rng)
    x = torch.from_numpy(rng.standard_normal((12, 512)).astype(np.float32))
    whole = product(native, x, matrix)
    for first in range(13):
        for second in range(first, 13):
            parts = [part.contiguous() for part in (x[:first], x[first:second], x[second:])]
            assert same_bits(torch.cat([product(native, part, matrix) for part in parts]), whole)


@pytest.mark.parametrize(("name", "arithmetic"), [("q5_k", "int8"), ("q5_k", "float32"), ("f16", "float32")])
def test_more_rows_than_a_pass(native, rng, two_threads, name, arithmetic):
    matrix, _ = packed_matrix(name, 40, 256, rng)
    x = torch.from_numpy(rng.standard_normal((700, 256)).astype(np.float32))
    whole = product(native, x, matrix, arithmetic)
    parts = [product(native, part.contiguous(), matrix, arithmetic) for part in x.split(101)]
    assert same_bits(torch.cat(parts), whole)


@pytest.mark.parametrize("rows", [5, 16, 100])
def test_narrow_matrices_split_their_activations(native, rng, rows):
    """Few weight rows and many activation rows: threads share the latter."""
    matrix, _ = packed_matrix("q8_0", rows, 1024, rng)
    x = torch.from_numpy(rng.standard_normal((250, 1024)).astype(np.float32))
    before = library.threads()
    try:
        library.set_threads(1)
        wanted = product(native, x, matrix)
        library.set_threads(7)
        assert same_bits(product(native, x, matrix), wanted)
    finally:
        library.set_threads(before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("name", "arithmetic"), [("q4_k", "int8"), ("q4_k", "float32"), ("bf16", "float32")])
def test_half_activations_round_once(native, rng, dtype, isa, name, arithmetic):
    matrix, _ = packed_matrix(name, 131, 512, rng)
    x = torch.from_numpy(rng.standard_normal((9, 512)).astype(np.float32)).to(dtype)
    bias = torch.from_numpy(rng.standard_normal(131).astype(np.float32))
    with use_isa(isa):
        out = product(native, x, matrix, arithmetic, bias)
        assert torch.equal(out, product(native, x.float(), matrix, arithmetic, bias).to(dtype))


def test_bias_is_added_last(native, rng):
    matrix, _ = packed_matrix("q6_k", 19, 256, rng)
    x = torch.from_numpy(rng.standard_normal((5, 256)).astype(np.float32))
    bias = torch.from_numpy(rng.standard_normal(19).astype(np.float32))
    assert torch.equal(product(native, x, matrix, bias=bias), product(native, x, matrix) + bias)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["q4_k", "q8_0", "q4_1"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_stays_in_its_row(native, rng, isa, name, bad):
    matrix, _ = packed_matrix(name, 21, 512, rng)
    x = torch.from_numpy(rng.standard_normal((6, 512)).astype(np.float32))
    with use_isa(isa):
        clean = product(native, x, matrix)
        x[3, 100] = bad
        out = product(native, x, matrix)
    assert out[3].isnan().all()
    others = [0, 1, 2, 4, 5]
    assert same_bits(out[others], clean[others])


@pytest.mark.parametrize("isa", ISAS)
def test_tiny_and_huge_activations(native, rng, isa):
    matrix, weights = packed_matrix("q8_0", 8, 256, rng)
    x = rng.standard_normal((4, 256)).astype(np.float32)
    x *= np.array([1e-36, 1e-20, 1e20, 0], np.float32)[:, None]
    x[1, :32] = 0
    with use_isa(isa):
        out = product(native, torch.from_numpy(x), matrix).numpy()
    wanted, bound = product_and_bound(x, "q8_0", weights, "int8")
    assert (np.abs(out - wanted) <= bound).all()
    assert (out[0] == 0).all() and (out[3] == 0).all()


def test_subnormals_are_kept_whatever_the_callers_mode(native, rng):
    """torch may flush subnormals in the caller's thread; the library computes in the default mode and gives it back."""
    matrix, _ = packed_matrix("f32", 3, 64, rng)
    x = torch.from_numpy((rng.standard_normal((2, 64)) * 1e-39).astype(np.float32))
    wanted = product(native, x, matrix)
    assert wanted.abs().max() > 0
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        out = product(native, x, matrix)
        flushed = torch.tensor([1e-39]) * 1.0
    finally:
        torch.set_flush_denormal(False)
    assert same_bits(out, wanted)
    assert flushed.item() == 0


@pytest.mark.parametrize(("count", "rows"), [(0, 5), (3, 0), (0, 0)])
def test_nothing_to_do(native, rng, count, rows):
    matrix, _ = packed_matrix("f16", rows, 256, rng)
    assert product(native, torch.zeros(count, 256), matrix).shape == (count, rows)
