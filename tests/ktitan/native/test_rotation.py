"""Rotation of heads: the bits of stock rotary functions, and the formula in every form."""

import itertools

import pytest
import torch
from transformers.models.deepseek_v2.modeling_deepseek_v2 import apply_rotary_emb
from transformers.models.deepseek_v3.modeling_deepseek_v3 import apply_rotary_pos_emb_interleave
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from ktitan.errors import UnsupportedError
from ktitan.native.attention import PAIRINGS, Rotation, rotate

from support.attention_twin import normal, turned_twin
from support.contract_bits import same_bits


def angles(rng, tokens, turned):
    """(cos, sin) as stock models make them, [1, tokens, turned], and the library's table."""
    angle = torch.from_numpy(rng.uniform(-4000, 4000, (tokens, turned // 2)).astype("float32"))
    both = torch.cat([angle, angle], -1)[None]
    return both.cos(), both.sin(), torch.cat([angle.cos(), angle.sin()], -1)


def by_stock(function, x, cos, sin):
    turned, _ = function(x.transpose(1, 2), x.transpose(1, 2), cos, sin)
    return turned.transpose(1, 2).contiguous()


@pytest.mark.parametrize("width", [8, 32, 64, 96, 128])
def test_stock_forms_have_equal_bits(native, rng, two_threads, width):
    x = normal(rng, 1, 29, 5, width)
    cos, sin, table = angles(rng, 29, width)
    assert same_bits(rotate(x, Rotation.of_halves(width), table), by_stock(apply_rotary_pos_emb, x, cos, sin))
    interleaved = Rotation(width, 0, width, "neighbours", "halves")
    assert same_bits(rotate(x, interleaved, table), by_stock(apply_rotary_pos_emb_interleave, x, cos, sin))


def test_the_complex_form(native, rng):
    x = normal(rng, 2, 7, 3, 64)
    cos, sin, table = angles(rng, 14, 64)
    numbers = torch.complex(cos[..., :32], sin[..., :32]).view(2, 7, 32)
    stock, _ = apply_rotary_emb(x.transpose(1, 2), x.transpose(1, 2), numbers)
    found = rotate(x, Rotation(64, 0, 64, "neighbours", "neighbours"), table)
    torch.testing.assert_close(found, stock.transpose(1, 2), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("reads", "writes"), list(itertools.product(PAIRINGS, PAIRINGS)))
def test_every_form_of_a_part(native, rng, reads, writes):
    for width, first, turned in ((24, 0, 8), (40, 16, 24), (192, 128, 64), (10, 4, 0), (6, 0, 6)):
        x, (_, _, table) = normal(rng, 11, 4, width), angles(rng, 11, turned)
        rotation = Rotation(width, first, turned, reads, writes)
        before = x.clone()
        torch.testing.assert_close(
            rotate(x, rotation, table).double(), turned_twin(x, rotation, table), rtol=0, atol=1e-5
        )
        assert torch.equal(x, before)


def test_what_is_refused(native, rng):
    for wrong in ((8, 2, 8), (8, 0, 3), (8, -2, 4), (4096, 0, 2048)):
        with pytest.raises(UnsupportedError):
            Rotation(*wrong)
    with pytest.raises(UnsupportedError, match="pairings"):
        Rotation(8, 0, 8, "thirds")
    x = normal(rng, 3, 2, 8)
    with pytest.raises(UnsupportedError, match="table has shape"):
        rotate(x, Rotation.of_halves(8), normal(rng, 2, 8))
    with pytest.raises(UnsupportedError, match="x has shape"):
        rotate(x, Rotation.of_halves(6), normal(rng, 3, 6))
    with pytest.raises(UnsupportedError, match="float64"):
        rotate(x.double(), Rotation.of_halves(8), normal(rng, 3, 8))
