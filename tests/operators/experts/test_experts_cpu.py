import copy

import numpy as np
import pytest
import torch
from test_experts_torch import CLASSES, routed, stock_experts
from torch import nn

from ktitan.errors import UnsupportedError
from ktitan.operators.experts.cpu import activation_of
from ktitan.operators.experts.torch import read_flags

from support.operator_rig import fresh_seed, loaded, relative_difference, tiny_config
from support.packed_rig import PACKED, PackedWeights, packed_operator, reason_of, stored_rows

SIZES = {"hidden_size": 256, "intermediate_size": 512, "moe_intermediate_size": 512}
FAMILIES = ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3"]


@pytest.fixture
def rng():
    return np.random.default_rng(fresh_seed())


def packed_experts(family, rng, gate="q4_k", up="q4_k", down="q6_k", **changes):
    """(stock experts on dequantised numbers, their stored weights)."""
    generator = torch.Generator().manual_seed(int(rng.integers(1 << 31)))
    stock = stock_experts(family, generator, **{**SIZES, **changes}).requires_grad_(False)
    experts, hidden, inner = stock.down_proj.shape
    rows = {
        "gate": stored_rows(gate, (experts, inner, hidden), rng),
        "up": stored_rows(up, (experts, inner, hidden), rng),
        "down": stored_rows(down, (experts, hidden, inner), rng),
    }
    stock.gate_up_proj.copy_(torch.cat([rows["gate"][1], rows["up"][1]], dim=1))
    stock.down_proj.copy_(rows["down"][1])
    packed = {
        "gate_up_proj": [(gate, rows["gate"][0]), (up, rows["up"][0])],
        "down_proj": [(down, rows["down"][0])],
    }
    return stock, PackedWeights(stock, packed)


def call_of(stock, tokens, top_k, rng, dtype=torch.float32):
    generator = torch.Generator().manual_seed(int(rng.integers(1 << 31)))
    return routed(tokens, top_k, stock.num_experts, stock.down_proj.shape[1], generator, dtype)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("tokens", "top_k"), [(1, 1), (1, 3), (17, 2), (65, 4)])
def test_float_activations_against_the_torch_twin(family, tokens, top_k, rng):
    stock, weights = packed_experts(family, rng)
    operator = packed_operator("experts.cpu", stock, weights, activations="float32")
    call = call_of(stock, tokens, top_k, rng)
    assert relative_difference(operator(*call), loaded("experts.torch", stock)(*call)) < 1e-5


@pytest.mark.parametrize("kind", PACKED)
def test_every_type(kind, rng):
    stock, weights = packed_experts("qwen3_moe", rng, kind, kind, kind)
    exact = packed_operator("experts.cpu", stock, weights, activations="float32")
    rounded = packed_operator("experts.cpu", stock, weights)
    call = call_of(stock, 9, 2, rng)
    expected = loaded("experts.torch", stock)(*call)
    assert relative_difference(exact(*call), expected) < 1e-5
    assert (rounded(*call) - expected).norm() / expected.norm() < 0.03


def test_gate_up_and_down_of_three_types(rng):
    stock, weights = packed_experts("deepseek_v3", rng, "q4_k", "q6_k", "q5_1")
    operator = packed_operator("experts.cpu", stock, weights, activations="float32")
    call = call_of(stock, 5, 2, rng)
    assert relative_difference(operator(*call), loaded("experts.torch", stock)(*call)) < 1e-5
    assert (operator.bank.gate.format, operator.bank.up.format, operator.bank.down.format) == ("q4_k", "q6_k", "q5_1")


def test_same_bits_however_tokens_are_split_or_grouped(rng):
    stock, weights = packed_experts("qwen3_moe", rng)
    operator = packed_operator("experts.cpu", stock, weights)
    x, index, shares = call_of(stock, 70, 3, rng)
    whole = operator(x, index, shares)
    for step in (1, 2, 5, 33):
        parts = [operator(*part) for part in zip(x.split(step), index.split(step), shares.split(step), strict=True)]
        assert torch.equal(torch.cat(parts), whole)
    order = torch.randperm(70)
    assert torch.equal(operator(x[order], index[order], shares[order]), whole[order])


def test_odd_routings(rng):
    stock, weights = packed_experts("mixtral", rng)
    operator = packed_operator("experts.cpu", stock, weights)
    x, index, shares = call_of(stock, 6, 2, rng)
    one = torch.zeros_like(index)
    single = operator(x, one[:, :1], torch.ones(6, 1))
    # The same expert twice, and all tokens to one expert.
    assert torch.allclose(operator(x, one, torch.full((6, 2), 0.5)), single, rtol=1e-5, atol=1e-6)
    # A pair that is left out adds nothing.
    skipped = index.clone()
    skipped[:, 1] = stock.num_experts
    assert torch.equal(operator(x, skipped, shares), operator(x, index[:, :1], shares[:, :1]))
    assert operator(x[:0], index[:0], shares[:0]).shape == (0, 256)
    for wrong in (stock.num_experts + 1, -1):
        bad = index.clone()
        bad[3, 1] = wrong
        with pytest.raises(UnsupportedError, match=f"expert index {wrong} in a layer of {stock.num_experts}"):
            operator(x, bad, shares)
    assert torch.equal(operator(x, index, shares), operator(x, index, shares))


def test_bfloat16_is_widened_and_rounded_once(rng):
    stock, weights = packed_experts("qwen3_moe", rng)
    operator = packed_operator("experts.cpu", stock, weights, torch.bfloat16)
    x, index, shares = call_of(stock, 7, 2, rng, torch.bfloat16)
    assert torch.equal(operator(x, index, shares), operator(x.float(), index, shares).bfloat16())


def test_what_it_refuses(rng):
    stock, weights = packed_experts("qwen3_moe", rng)
    assert "on cuda:0" in reason_of("experts.cpu", stock, weights, device="cuda:0")
    generator = torch.Generator().manual_seed(1)
    gpt = stock_experts("gpt_oss", generator)
    assert "transposed" in reason_of("experts.cpu", gpt, weights)
    assert "forward of its own" in reason_of("experts.cpu", nn.Linear(2, 2), weights)
    mixed = {
        **weights.packed,
        "down_proj": [(kind, stored_rows(kind, (stock.num_experts, 128, 512), rng)[0]) for kind in ("q4_k", "q6_k")],
    }
    assert "several formats" in reason_of("experts.cpu", stock, PackedWeights(stock, mixed))


@pytest.mark.parametrize(
    ("activation", "expected"),
    [("silu", "silu"), ("gelu_pytorch_tanh", "gelu_tanh"), ("relu", ""), ("gelu", ""), ("tanh", "")],
)
def test_the_activation_is_recognised_by_its_numbers(activation, expected):
    config = tiny_config("qwen3_moe", hidden_act=activation)
    config._experts_implementation = "eager"
    module = CLASSES["qwen3_moe"](config)
    name, reason = activation_of(module, read_flags(module))
    assert name == expected
    assert (reason is None) is bool(expected)


def test_gelu_experts(rng):
    stock, weights = packed_experts("qwen3_moe", rng, hidden_act="gelu_pytorch_tanh")
    operator = packed_operator("experts.cpu", stock, weights, activations="float32")
    call = call_of(stock, 5, 2, rng)
    assert operator.bank.activation == "gelu_tanh"
    assert relative_difference(operator(*call), loaded("experts.torch", stock)(*call)) < 1e-5


def test_copies_share_the_weights(rng):
    stock, weights = packed_experts("qwen3_moe", rng)
    operator = packed_operator("experts.cpu", stock, weights)
    call = call_of(stock, 3, 2, rng)
    copied = copy.deepcopy(operator)
    assert copied.bank.up is operator.bank.up
    assert torch.equal(copied(*call), operator(*call))


def test_inside_a_compiled_graph(rng):
    stock, weights = packed_experts("qwen3_moe", rng)
    operator = packed_operator("experts.cpu", stock, weights)
    compiled = torch.compile(lambda *call: operator(*call) + 1, backend="aot_eager", fullgraph=True)
    call = call_of(stock, 3, 2, rng)
    with torch.no_grad():
        assert torch.equal(compiled(*call), operator(*call) + 1)


def test_a_router_s_gradient_is_not_dropped(rng):
    stock, weights = packed_experts("qwen3_moe", rng)
    operator = packed_operator("experts.cpu", stock, weights)
    hidden, index, shares = call_of(stock, 3, 2, rng)
    with pytest.raises(UnsupportedError, match="no backward"):
        operator(hidden, index, shares.requires_grad_())
