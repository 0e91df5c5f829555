import copy

import pytest
import torch
from torch import nn
from transformers import Llama4TextConfig
from transformers.integrations.moe import use_experts_implementation
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Experts
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Experts
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.llama4.modeling_llama4 import Llama4TextExperts
from transformers.models.mixtral.modeling_mixtral import MixtralExperts
from transformers.models.olmoe.modeling_olmoe import OlmoeExperts
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeExperts
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from ktitan.errors import UnsupportedError
from ktitan.operators.experts.torch import expert_groups

from support.operator_rig import (
    fresh_seed,
    loaded,
    meta_twin,
    randomize,
    refusal,
    relative_difference,
    tiny_config,
    tiny_model,
)

CLASSES = {
    "mixtral": MixtralExperts,
    "qwen2_moe": Qwen2MoeExperts,
    "qwen3_moe": Qwen3MoeExperts,
    "olmoe": OlmoeExperts,
    "deepseek_v2": DeepseekV2Experts,
    "deepseek_v3": DeepseekV3Experts,
    "gpt_oss": GptOssExperts,
}
ODD = {"hidden_size": 36, "intermediate_size": 21, "moe_intermediate_size": 19}


def stock_experts(family, generator, dtype=torch.float32, implementation="eager", **changes):
    config = tiny_config(family, **changes)
    config._experts_implementation = implementation
    return randomize(CLASSES[family](config), generator, spread=2.0).to(dtype)


def routed(tokens, top_k, experts, hidden, generator, dtype=torch.float32):
    x = torch.randn(tokens, hidden, generator=generator).to(dtype)
    scores = torch.randn(tokens, experts, generator=generator)
    weights, index = scores.softmax(-1).topk(top_k, dim=-1)
    return x, index, weights


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(fresh_seed())


@pytest.mark.parametrize("family", sorted(CLASSES))
@pytest.mark.parametrize(("tokens", "top_k"), [(1, 1), (1, 3), (17, 2), (65, 4)])
def test_against_stock(family, tokens, top_k, generator):
    stock = stock_experts(family, generator, **ODD)
    operator = loaded("experts.torch", stock)
    call = routed(tokens, top_k, stock.num_experts, 36, generator)
    with torch.no_grad():
        assert relative_difference(operator(*call), stock(*call)) < 1e-5
    assert set(operator.state_dict()) == set(stock.state_dict())
    assert not any(parameter.requires_grad for parameter in operator.parameters())


@pytest.mark.parametrize("family", sorted(CLASSES))
def test_bfloat16_is_as_near_to_the_truth_as_stock(family, generator):
    sizes = {"hidden_size": 40, "intermediate_size": 24, "moe_intermediate_size": 24}
    stock = stock_experts(family, generator, torch.bfloat16, "grouped_mm", **sizes)
    operator = loaded("experts.torch", stock, torch.bfloat16)
    exact = copy.deepcopy(stock).float()
    x, index, weights = routed(33, 3, stock.num_experts, 40, generator, torch.bfloat16)
    with torch.no_grad():
        truth = exact(x.float(), index, weights)
        ours, theirs = operator(x, index, weights), stock(x, index, weights)
    assert ours.dtype == torch.bfloat16
    assert relative_difference(ours, truth) < 2 * relative_difference(theirs, truth) + 1e-3
    assert relative_difference(ours, theirs) < 2e-2


def plain_loop(stock, x, index, weights):
    """The definition, one pair of token and expert at a time, in float64; sentinels are left out."""
    wide = copy.deepcopy(stock).double()
    out = torch.zeros(x.shape, dtype=torch.float64)
    for token in range(x.shape[0]):
        for slot in range(index.shape[1]):
            if index[token, slot] < stock.num_experts:
                pair = index[token, slot].view(1, 1)
                out[token] += wide(x[token : token + 1].double(), pair, weights[token, slot].view(1, 1).double())[0]
    return out


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
@pytest.mark.parametrize(
    "case", ["none", "one", "all_to_first", "63", "64", "65", "twice", "sentinel", "only_sentinels"]
)
def test_uneven_loads(family, case, generator):
    stock = stock_experts(family, generator)
    experts, hidden = stock.num_experts, 40
    operator = loaded("experts.torch", stock)
    tokens = {"none": 0, "one": 1, "63": 63, "64": 64, "65": 65}.get(case, 9)
    x, index, weights = routed(tokens, 2, experts, hidden, generator)
    if case in ("all_to_first", "63", "64", "65"):
        index[:, 0] = 0
        index[:, 1] = torch.randint(1, experts, (tokens,), generator=generator) if case == "all_to_first" else 2
    elif case == "twice":
        index[:, 1] = index[:, 0]
    elif case == "sentinel":
        index[::2, 1] = experts
    elif case == "only_sentinels":
        index[:] = experts
    with torch.no_grad():
        actual = operator(x, index, weights)
        expected = plain_loop(stock, x, index, weights)
        again = operator(x, index, weights)
    assert actual.shape == (tokens, hidden)
    assert torch.allclose(actual.double(), expected, atol=1e-4, rtol=1e-5)
    assert torch.equal(actual, again)


def test_idle_experts_are_not_touched(generator):
    stock = stock_experts("qwen3_moe", generator)
    operator = loaded("experts.torch", stock)
    for name in ("gate_up_proj", "down_proj"):
        getattr(operator, name).data[[1, 3]] = torch.nan
    x, _, weights = routed(8, 2, stock.num_experts, 40, generator)
    index = torch.tensor([[0, 2]] * 8)
    assert torch.isfinite(operator(x, index, weights)).all()


def test_inputs_are_left_alone(generator):
    stock = stock_experts("mixtral", generator)
    call = routed(5, 2, stock.num_experts, 40, generator)
    before = [tensor.clone() for tensor in call]
    loaded("experts.torch", stock)(*call)
    assert all(torch.equal(a, b) for a, b in zip(call, before, strict=True))


def test_an_index_beyond_the_sentinel_is_an_error(generator):
    stock = stock_experts("mixtral", generator)
    x, index, weights = routed(3, 2, stock.num_experts, 40, generator)
    index[1, 0] = stock.num_experts + 1
    with pytest.raises(UnsupportedError, match="expert index 6 in a layer of 5 experts"):
        loaded("experts.torch", stock)(x, index, weights)


def test_groups_are_ascending_and_complete():
    index = torch.tensor([[3, 0], [0, 3], [4, 3]])
    groups = [(expert, slots.tolist()) for expert, slots in expert_groups(index, 4)]
    assert groups == [(0, [1, 2]), (3, [0, 3, 5])]


@pytest.mark.parametrize(
    ("logits", "bias", "expected", "weights"),
    [
        ([0.2, 0.1, -0.1, -0.2], [-2, -2, -2.1, -2.1], [0, 1], [0.51156, 0.48844]),
        ([-18.0] * 4, [12.0] * 4, None, [0.5, 0.5]),
    ],
)
def test_routing_with_negative_biased_scores(logits, bias, expected, weights):
    """The router stays stock; a whole block with replaced experts answers as the stock block does."""
    seed = fresh_seed()
    changes = {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "norm_topk_prob": True}
    model = tiny_model("deepseek_v3", seed, **changes, routed_scaling_factor=1.0)
    block = model.model.layers[1].mlp
    with torch.no_grad():
        block.gate.weight.zero_()
        block.gate.weight[:, 0] = torch.tensor(logits)
        block.gate.e_score_correction_bias.copy_(torch.tensor(bias))
    x = torch.randn(1, 3, 40, generator=torch.Generator().manual_seed(seed))
    x[..., 0] = 1.0
    with torch.no_grad():
        stock_answer = block(x)
        seen = []
        operator = loaded("experts.torch", block.experts)
        operator.register_forward_pre_hook(lambda _, args: seen.append(args))
        block.experts = operator
        answer = block(x)
    (_, index, given), *_ = seen
    assert relative_difference(answer, stock_answer) < 1e-5
    assert given.sort(descending=True).values[0].tolist() == pytest.approx(weights, abs=1e-5)
    if expected is not None:
        assert sorted(index[0].tolist()) == expected


@use_experts_implementation(has_gate=False)
class UngatedExperts(nn.Module):
    """One up matrix and relu^2, as Nemotron-H has it; the activation is a method that only the class knows."""

    def __init__(self, config):
        super().__init__()
        self.num_experts = 4
        self.up_proj = nn.Parameter(torch.zeros(4, 16, 40))
        self.down_proj = nn.Parameter(torch.zeros(4, 40, 16))

    def act_fn(self, x):
        return torch.relu(x).square()

    def forward(self, hidden_states, top_k_index, top_k_weights):
        raise NotImplementedError


def test_ungated_experts(generator):
    config = tiny_config("mixtral")
    config._experts_implementation = "grouped_mm"
    stock = randomize(UngatedExperts(config), generator)
    call = routed(11, 2, 4, 40, generator)
    with torch.no_grad():
        assert relative_difference(loaded("experts.torch", stock)(*call), stock(*call)) < 1e-5


class OwnForward(MixtralExperts):
    def forward(self, hidden_states, top_k_index, top_k_weights):
        return super().forward(hidden_states, top_k_index, top_k_weights) * 2


def altered(change):
    experts = MixtralExperts(tiny_config("mixtral"))
    change(experts)
    return meta_twin(experts)


@pytest.mark.parametrize(
    ("module", "clause"),
    [
        (nn.Linear(2, 2), "forward of its own"),
        (OwnForward(tiny_config("mixtral")), "OwnForward computes in a forward of its own"),
        (
            Llama4TextExperts(Llama4TextConfig(hidden_size=8, intermediate_size=8, num_local_experts=2)),
            "forward of its own",
        ),
        (altered(lambda m: setattr(m, "has_post_expert_norm", True)), "normalises"),
        (
            altered(lambda m: setattr(m, "gate_up_proj_scale_inv", nn.Parameter(torch.ones(5)))),
            "gate_up_proj_scale_inv",
        ),
        (altered(lambda m: setattr(m, "router", nn.Linear(2, 2))), "children router"),
        (altered(lambda m: setattr(m, "has_bias", True)), "lacks down_proj_bias, gate_up_proj_bias"),
        (altered(lambda m: setattr(m, "down_proj", nn.Parameter(torch.ones(5, 40, 7)))), "do not fit"),
        (altered(lambda m: setattr(m, "act_fn", nn.PReLU())), "activation has tensors"),
        (
            altered(lambda m: setattr(m, "down_proj", nn.Parameter(m.down_proj.to(torch.float8_e4m3fn), False))),
            "float8_e4m3fn",
        ),
    ],
)
def test_refuses_what_it_does_not_compute(module, clause):
    assert clause in refusal("experts.torch", module)
