import numpy as np
import pytest
import torch
from torch import nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3TextScaledWordEmbedding

from ktitan.errors import UnsupportedError

from support.operator_rig import fresh_seed, loaded
from support.packed_rig import KINDS, PackedWeights, packed_operator, reason_of, stored_rows, width


@pytest.fixture
def rng():
    return np.random.default_rng(fresh_seed())


def packed_table(kind, rows, columns, rng, module=None):
    table = module or nn.Embedding(rows, columns)
    stored, numbers = stored_rows(kind, (rows, columns), rng)
    table.weight.data.copy_(numbers)
    return table.requires_grad_(False), PackedWeights(table, {"weight": [(kind, stored)]})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1,), (2, 7), (0,), ()])
def test_rows_have_the_bits_of_the_dequantised_table(kind, shape, rng):
    table, weights = packed_table(kind, 23, width(kind), rng)
    operator = packed_operator("embedding.cpu", table, weights)
    ids = torch.randint(0, 23, shape)
    assert torch.equal(operator(ids), table(ids))


def test_the_scale_of_gemma(rng):
    table, weights = packed_table("q6_k", 23, 256, rng, Gemma3TextScaledWordEmbedding(23, 256, 0, embed_scale=16.5))
    operator = packed_operator("embedding.cpu", table, weights)
    ids = torch.randint(0, 23, (3, 5))
    assert torch.equal(operator(ids), loaded("embedding.torch", table)(ids))


def test_the_model_s_dtype(rng):
    table, weights = packed_table("q4_0", 23, 64, rng)
    operator = packed_operator("embedding.cpu", table.bfloat16(), weights, torch.bfloat16)
    assert operator(torch.tensor([3])).dtype == torch.bfloat16


@pytest.mark.parametrize("wrong", [23, -1])
def test_ids_outside_of_the_table(wrong, rng):
    table, weights = packed_table("q4_0", 23, 64, rng)
    operator = packed_operator("embedding.cpu", table, weights)
    with pytest.raises(UnsupportedError, match=f"row {wrong} of a table of 23 rows"):
        operator(torch.tensor([1, wrong]))


def test_what_it_refuses(rng):
    table, weights = packed_table("q4_0", 23, 64, rng)
    assert "on cuda:0" in reason_of("embedding.cpu", table, weights, device="cuda:0")
    assert "not known" in reason_of("embedding.cpu", table, PackedWeights(table, {}))
    assert "max_norm" in reason_of("embedding.cpu", nn.Embedding(4, 4, max_norm=1.0), weights)
