import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import ktitan
from ktitan.errors import UnsupportedError
from ktitan.native import PackedMatrix

from support.operator_rig import context_for, fresh_seed, relative_difference
from support.packed_rig import KINDS, PackedWeights, packed_linear, packed_operator, reason_of, stored_rows, width


@pytest.fixture
def rng():
    return np.random.default_rng(fresh_seed())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("outputs", [1, 19])
def test_float_activations_are_exact(kind, outputs, rng):
    stock, weights = packed_linear(kind, width(kind), outputs, rng)
    operator = packed_operator("linear.cpu", stock, weights, activations="float32")
    for rows in ((1,), (3, 5), (33,)):
        x = torch.randn(*rows, stock.in_features)
        assert operator(x).shape == (*rows, outputs)
        # Against the size of what is summed: a single output may happen to be nearly zero.
        summed = torch.nn.functional.linear(x.abs(), stock.weight.abs()).max()
        assert (operator(x) - stock(x)).abs().max() / summed < 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_rounded_activations_are_near(kind, rng):
    stock, weights = packed_linear(kind, width(kind, 4), 40, rng)
    operator = packed_operator("linear.cpu", stock, weights)
    x = torch.randn(64, stock.in_features)
    error = (operator(x) - stock(x)).norm() / stock(x).norm()
    assert error < 0.015


@pytest.mark.parametrize("kind", ["q4_k", "q4_1", "q8_0", "q6_k", "iq2_xxs", "nvfp4", "bf16"])
def test_same_bits_however_the_rows_are_split(kind, rng):
    stock, weights = packed_linear(kind, width(kind, 3), 37, rng)
    operator = packed_operator("linear.cpu", stock, weights)
    x = torch.randn(33, stock.in_features)
    whole = operator(x)
    for step in (1, 2, 3, 4, 7, 16, 32):
        assert torch.equal(torch.cat([operator(part) for part in x.split(step)]), whole)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_dtypes_are_widened_and_rounded_once(dtype, rng):
    stock, weights = packed_linear("q4_k", 512, 21, rng)
    operator = packed_operator("linear.cpu", stock, weights, dtype)
    x = torch.randn(2, 5, 512).to(dtype)
    assert torch.equal(operator(x), operator(x.float()).to(dtype))


def test_views_and_no_rows(rng):
    stock, weights = packed_linear("q5_0", 64, 9, rng)
    operator = packed_operator("linear.cpu", stock, weights)
    x = torch.randn(6, 4, 128)[:, ::2, ::2]
    assert torch.equal(operator(x), operator(x.contiguous()))
    assert operator(torch.empty(0, 64)).shape == (0, 9)
    assert operator(torch.empty(2, 0, 64)).shape == (2, 0, 9)
    assert operator(torch.randn(64)).shape == (9,)


def test_the_bias_is_added(rng):
    with_bias, weights = packed_linear("q8_0", 96, 11, rng)
    without = copy.deepcopy(with_bias)
    without.bias = None
    plain = packed_operator("linear.cpu", without, PackedWeights(without, weights.packed))
    x = torch.randn(3, 96)
    assert torch.equal(packed_operator("linear.cpu", with_bias, weights)(x), plain(x) + with_bias.bias)


def test_memory_is_that_of_the_file(rng):
    stock, weights = packed_linear("q4_k", 512, 10, rng)
    operator = packed_operator("linear.cpu", stock, weights)
    kind = type(operator)
    from support.packed_rig import packed_context

    need = kind.memory(packed_context(stock, weights), kind.Config())
    assert (need.resident_bytes, need.format) == (10 * 288 + 40, "q4_k")
    assert "q4_k" in need.kernel
    assert operator.matrix.nbytes == 2880
    assert [tuple(p.shape) for p in operator.parameters()] == [(10,)]


def test_what_it_refuses(rng):
    stock, weights = packed_linear("q4_k", 256, 8, rng)
    assert "on cuda:0" in reason_of("linear.cpu", stock, weights, device="cuda:0")
    assert "how its weight is stored is not known" in reason_of("linear.cpu", stock, PackedWeights(stock, {}))
    assert "not an nn.Linear" in reason_of("linear.cpu", nn.Bilinear(2, 2, 2), PackedWeights(stock, {}))
    plain, plain_weights = packed_linear("bf16", 24, 8, rng)
    assert reason_of("linear.cpu", plain, plain_weights) is None
    assert "stored as plain bf16" in reason_of("linear.cpu", plain, plain_weights, only_packed=True)
    halves = [(kind, stored_rows(kind, (4, 256), rng)[0]) for kind in ("q4_k", "q6_k")]
    assert "several formats (q4_k, q6_k)" in reason_of("linear.cpu", stock, PackedWeights(stock, {"weight": halves}))


def test_rows_that_are_not_stored_whole(rng):
    stock, _ = packed_linear("q4_k", 256, 8, rng)
    context = context_for(stock)
    object.__setattr__(context, "formats", {"weight": ("q4_k",)})
    from ktitan.operators import CpuLinear

    assert "not stored whole" in CpuLinear.supports(context, CpuLinear.Config())


def test_copies_share_and_pickles_carry_the_weights(rng):
    stock, weights = packed_linear("q6_k", 256, 8, rng)
    operator = packed_operator("linear.cpu", stock, weights)
    x = torch.randn(3, 256)
    copied, restored = copy.deepcopy(operator), pickle.loads(pickle.dumps(operator))
    assert copied.matrix is operator.matrix
    assert torch.equal(copied(x), operator(x)) and torch.equal(restored(x), operator(x))


def test_packed_weights_are_no_checkpoint(rng):
    stock, weights = packed_linear("q6_k", 256, 8, rng)
    operator = packed_operator("linear.cpu", stock, weights)
    with pytest.raises(UnsupportedError, match=r"(?s)cannot be written.*undo"):
        operator.state_dict()
    with pytest.raises(UnsupportedError, match=r"(?s)cannot be read.*undo"):
        operator.load_state_dict(stock.state_dict())


def test_no_gradient_passes_in_silence(rng):
    stock, weights = packed_linear("q6_k", 256, 8, rng)
    operator = packed_operator("linear.cpu", stock, weights)
    x = torch.randn(3, 256, requires_grad=True)
    with pytest.raises(UnsupportedError, match="no backward"):
        operator(x)
    with torch.no_grad():
        operator(x)
    with pytest.raises(UnsupportedError, match=r"(?s)int64.*float32, bfloat16 or float16"):
        operator(torch.zeros(3, 256, dtype=torch.int64))


def test_inside_a_compiled_graph(rng):
    stock, weights = packed_linear("q4_k", 256, 12, rng)
    operator = packed_operator("linear.cpu", stock, weights)
    compiled = torch.compile(lambda x: operator(x * 2).relu(), backend="aot_eager", fullgraph=True)
    for rows in (1, 5):
        x = torch.randn(rows, 256)
        with torch.no_grad():
            assert torch.equal(compiled(x), operator(x * 2).relu())


def test_two_loads_of_one_stored_tensor_share_it(rng):
    stock, weights = packed_linear("q4_k", 256, 12, rng)
    first, second = (packed_operator("linear.cpu", stock, weights) for _ in range(2))
    assert first.matrix is second.matrix
    assert isinstance(first.matrix, PackedMatrix)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_live_model_is_its_own_source(dtype):
    stock = nn.Sequential(nn.Linear(37, 19), nn.Linear(19, 5, bias=False)).to(dtype)
    model = copy.deepcopy(stock)
    rules = [{"match": {"class": "Linear"}, "replace": {"class": "linear.cpu"}}]
    ktitan.optimize_and_load(model, rules, None, device="cpu")
    assert [part.matrix.format for part in model] == [{torch.float32: "f32", torch.bfloat16: "bf16"}[dtype]] * 2
    x = torch.randn(4, 37).to(dtype)
    with torch.no_grad():
        assert relative_difference(model(x), stock(x)) < (1e-5 if dtype == torch.float32 else 2e-2)
