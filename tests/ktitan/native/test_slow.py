"""Rows through the formats' own dequantisers, a bounded number at a time."""

import numpy as np
import pytest

from ktitan.native import slow

from support.packed_matrices import FORMATS, packed_matrix


@pytest.mark.parametrize("name", FORMATS)
def test_numbers_of_a_format(rng, name):
    matrix, numbers = packed_matrix(name, 7, 256, rng)
    found = slow.dequantize(name, matrix.data)
    assert found.dtype == np.float32 and found.flags.c_contiguous
    assert (found == numbers).all()


def test_pieces_are_bounded_and_in_order(rng, monkeypatch):
    matrix, numbers = packed_matrix("q5_0", 11, 64, rng)
    monkeypatch.setattr(slow, "_PIECE_NUMBERS", 3 * 64)
    pieces = list(slow.dequantized_pieces("q5_0", matrix.data, 64))
    assert [(first, len(rows)) for first, rows in pieces] == [(0, 3), (3, 3), (6, 3), (9, 2)]
    assert (np.concatenate([rows for _, rows in pieces]) == numbers).all()


def test_a_row_longer_than_a_piece_is_one_piece(rng, monkeypatch):
    matrix, _ = packed_matrix("q8_0", 2, 64, rng)
    monkeypatch.setattr(slow, "_PIECE_NUMBERS", 10)
    assert [len(rows) for _, rows in slow.dequantized_pieces("q8_0", matrix.data, 64)] == [1, 1]
