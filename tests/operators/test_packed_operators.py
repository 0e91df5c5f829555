"""What all operators with packed weights have in common: casts, default devices, graphs, gradients, bytes."""

import gc

import numpy as np
import pytest
import torch
from torch import nn

import ktitan
from ktitan.errors import UnsupportedError
from ktitan.native import embedding, linear

from support.operator_rig import fresh_seed
from support.packed_models import write_packed
from support.packed_rig import packed_context, packed_linear, packed_operator


@pytest.fixture
def rng():
    return np.random.default_rng(fresh_seed())


@pytest.fixture
def operator(rng):
    stock, weights = packed_linear("q4_k", 256, 12, rng)
    return packed_operator("linear.cpu", stock, weights)


@pytest.fixture(scope="module", params=["llama", "qwen3_moe"])
def path(request, tmp_path_factory):
    file = tmp_path_factory.mktemp("packed") / "m.gguf"
    write_packed(file, request.param, "q4_k", fresh_seed())
    return file


def test_a_default_device_does_not_move_results(operator):
    x, ids = torch.randn(3, 256), torch.tensor([1, 5])
    with torch.no_grad():
        expected, rows = operator(x), embedding(ids, operator.matrix, torch.float32)
        with torch.device("meta"):
            assert torch.equal(operator(x), expected)
            assert torch.equal(embedding(ids, operator.matrix, torch.float32), rows)


def test_traced_graphs_hold_the_operation(operator):
    x = torch.randn(3, 256)
    with torch.no_grad():
        traced = torch.jit.trace(lambda x: operator(x) + 1, x)
        y = torch.randn(3, 256)
        assert torch.equal(traced(y), operator(y) + 1)


def test_lazily_negated_inputs_are_negative(operator):
    x = torch.randn(3, 256)
    with torch.no_grad():
        assert torch.equal(operator(torch._neg_view(x)), operator(-x))


def test_a_cast_model_computes_in_the_new_dtype(path):
    dtype = torch.bfloat16
    model, _ = ktitan.load(path, device="cpu")
    ids = torch.randint(3, 64, (1, 9))
    with torch.no_grad():
        expected = model(ids).logits
        found = model.to(dtype)(ids).logits
    assert found.dtype == dtype and model.dtype == dtype
    assert (found.float() - expected).norm() / expected.norm() < 0.2


@pytest.mark.parametrize("target", [torch.float64, torch.device("meta")])
def test_casts_and_moves_that_cannot_be_are_refused(path, target):
    model, _ = ktitan.load(path, device="cpu")
    with pytest.raises(UnsupportedError, match="packed weights cannot go"):
        model.to(target)


def test_models_in_float64_keep_dense_operators(path):
    model, _ = ktitan.load(path, device="cpu", dtype=torch.float64)
    assert not {row.operator for row in model.ktitan.plan.rows if row.operator.endswith(".cpu")}
    with torch.no_grad():
        assert model(torch.randint(3, 64, (1, 5))).logits.dtype == torch.float64


def test_stats_count_packed_weights(path):
    model, _ = ktitan.load(path, device="cpu")
    weights = model.ktitan.plan.parts["ram"]["weights"]
    assert model.ktitan.stats()["resident_bytes"]["ram"] == pytest.approx(weights, abs=2048)


def test_wrong_inputs_are_named(operator):
    with pytest.raises(UnsupportedError, match="no dimensions"):
        linear(torch.tensor(1.0), operator.matrix, None, "int8")
    for ids in (torch.tensor([1.7]), torch.tensor([True])):
        with pytest.raises(UnsupportedError, match="whole numbers"):
            embedding(ids, operator.matrix, torch.float32)


def test_a_plan_does_not_keep_a_live_model_s_tensors():
    model = nn.Sequential(nn.Linear(61, 67, bias=False))
    ktitan.optimize_and_load(model, [{"match": {"class": "Linear"}, "replace": {"class": "linear.cpu"}}], None)
    gc.collect()
    tensors = [one for one in gc.get_objects() if type(one) in (torch.Tensor, nn.Parameter)]
    assert not [one for one in tensors if one.shape == (67, 61) and not one.is_meta]


def test_layouts_hold_no_tensor(rng):
    stock, weights = packed_linear("q4_k", 256, 12, rng)
    assert packed_context(stock, weights).layouts["weight"].segments == (("q4_k", 12),)
