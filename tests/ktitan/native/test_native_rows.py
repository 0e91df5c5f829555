"""Rows of a table from the native library: the bits of gguf's dequantiser."""

import numpy as np
import pytest
import torch

from ktitan.errors import UnsupportedError
from ktitan.native import library
from ktitan.native.library import ISAS, use_isa

from support.packed_matrices import FORMATS, packed_matrix


def rows(native, matrix, ids):
    out = torch.full((len(ids), matrix.columns), float("nan"))
    native.rows(matrix, ids, out)
    return out.numpy()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", FORMATS)
def test_bits_of_the_reference(native, rng, name, isa):
    matrix, numbers = packed_matrix(name, 37, 768, rng)
    ids = torch.from_numpy(rng.integers(0, 37, 90))
    with use_isa(isa):
        assert np.array_equal(rows(native, matrix, ids), numbers.astype(np.float32)[ids])


def test_threads_share_many_rows(native, rng, two_threads):
    matrix, numbers = packed_matrix("q4_k", 300, 512, rng)
    ids = torch.from_numpy(rng.integers(0, 300, 1000))
    for threads in (1, 2, 3):
        library.set_threads(threads)
        assert np.array_equal(rows(native, matrix, ids), numbers.astype(np.float32)[ids])


def test_no_ids(native, rng):
    matrix, _ = packed_matrix("q8_0", 3, 32, rng)
    assert rows(native, matrix, torch.zeros(0, dtype=torch.int64)).shape == (0, 32)


@pytest.mark.parametrize("wrong", [-1, 3, 2**33])
def test_an_id_out_of_range_writes_nothing(native, rng, wrong):
    matrix, _ = packed_matrix("q8_0", 3, 32, rng)
    out = torch.full((2, 32), 7.0)
    with pytest.raises(UnsupportedError, match=f"row {wrong} of a table of 3 rows"):
        native.rows(matrix, torch.tensor([0, wrong]), out)
    assert (out == 7).all()
