"""The numba backend beside its products: names for the plan, rows, refusals, and a machine without numba."""

import sys

import pytest
import torch

from ktitan.errors import HardwareError, UnsupportedError

from support.contract_bits import same_bits
from support.packed_matrices import FORMATS, packed_matrix

pytest.importorskip("numba", reason="numba is not installed, so there is no such backend")
from numba.core import config
from numba.core.errors import LoweringError

from ktitan.native import numba_operands
from ktitan.native.numba_backend import NumbaBackend, passes

KERNELS = {"q4_0", "q4_1", "q8_0", "q4_k", "q6_k"}


@pytest.fixture(scope="module")
def two():
    """The backend with two threads."""
    return NumbaBackend(2)


@pytest.mark.parametrize("name", FORMATS)
def test_kernel_names(two, name):
    slow = "gguf dequantiser (slow path)"
    if name in ("f32", "f16", "bf16"):
        expected = (f"numba {name} x float32",) * 2
    else:
        expected = (f"numba {name} x int8" if name in KERNELS else slow, slow)
    assert (two.kernel(name, "int8"), two.kernel(name, "float32")) == expected
    assert two.name == "numba"


@pytest.mark.parametrize("name", FORMATS)
def test_rows_are_the_dequantised_rows(two, rng, name):
    matrix, numbers = packed_matrix(name, 30, 256, rng)
    ids, out = torch.from_numpy(rng.integers(0, 30, 40)), torch.empty(40, 256)
    two.rows(matrix, ids, out)
    assert same_bits(out, torch.from_numpy(numbers).float()[ids])
    two.rows(matrix, ids[:0], out[:0])


def test_more_ids_than_a_pass(two, rng):
    matrix, numbers = packed_matrix("q8_0", 30, 32, rng)
    ids, out = torch.from_numpy(rng.integers(0, 30, 2500)), torch.empty(2500, 32)
    two.rows(matrix, ids, out)
    assert same_bits(out, torch.from_numpy(numbers).float()[ids])


@pytest.mark.parametrize(
    ("rows", "numbers", "most"), [(600, 100, 256), (600, 150_000, 111), (50, 1 << 30, 16), (0, 9, 0)]
)
def test_passes_cover_all_rows_within_their_memory(rows, numbers, most):
    parts = list(passes(rows, numbers))
    assert [row for part in parts for row in range(part.start, part.stop)] == list(range(rows))
    assert max((part.stop - part.start for part in parts), default=0) == min(most, rows)


@pytest.mark.parametrize("wrong", [-1, 30])
def test_a_row_out_of_range_is_refused(two, rng, wrong):
    matrix, out = packed_matrix("q8_0", 30, 64, rng)[0], torch.full((2, 64), 7.0)
    with pytest.raises(UnsupportedError, match=f"row {wrong} of a table of 30 rows"):
        two.rows(matrix, torch.tensor([0, wrong]), out)
    assert (out == 7).all()


@pytest.mark.parametrize(
    ("x", "activations", "message"),
    [
        (torch.ones(2, 32), "int8", "x has shape"),
        (torch.ones(2, 64), "int4", "activations 'int4'"),
        (torch.ones(2, 64, dtype=torch.float64), "int8", "x is torch.float64"),
        (torch.ones(2, 64, device="meta"), "int8", "x is on meta"),
        (torch.ones(64, 2).T, "int8", "x is not contiguous"),
    ],
)
def test_wrong_arguments_are_refused(two, rng, x, activations, message):
    matrix, _ = packed_matrix("q8_0", 4, 64, rng)
    with pytest.raises(UnsupportedError, match=message):
        two.linear(x, matrix, None, activations, torch.empty(2, 4))


def test_numba_missing_is_a_clear_error(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("ktitan.native.numba_")]:
        if name != "ktitan.native.numba_backend":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("ktitan.native.numba_operands")
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(HardwareError, match="numba cannot be imported") as caught:
        NumbaBackend(1)
    assert "install numba" in caught.value.remedy


def test_a_compiler_that_is_switched_off_is_a_clear_error(monkeypatch):
    monkeypatch.setattr(config, "DISABLE_JIT", 1)
    with pytest.raises(HardwareError, match="compiler is switched off") as caught:
        NumbaBackend(1)
    assert caught.value.where == "NUMBA_DISABLE_JIT"


def test_a_kernel_that_does_not_compile_is_a_clear_error(two, rng, monkeypatch):
    def fail(*arguments):
        raise LoweringError("no such instruction")

    monkeypatch.setattr(numba_operands, "quantize", lambda block: fail)
    matrix, _ = packed_matrix("q8_0", 4, 64, rng)
    with pytest.raises(HardwareError, match="numba cannot compile the CPU kernels") as caught:
        two.linear(torch.ones(1, 64), matrix, None, "int8", torch.empty(1, 4))
    assert "no such instruction" in caught.value.message
