"""`moe.cpu` against the stock blocks: choices, weights, outputs; hooks, records, copies, and what is refused."""

import copy
import pickle

import pytest
import torch
from torch import nn

from ktitan.errors import UnsupportedError
from ktitan.native.routing import route
from ktitan.operators.moe.cpu import CpuMoe
from ktitan.operators.moe.parts import RouterForm

from support.operator_rig import (
    FAMILIES,
    fresh_seed,
    injected,
    loaded,
    random_ids,
    refusal,
    relative_difference,
    tiny_model,
)

_GLM = {"n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "n_routed_experts": 8, "moe_intermediate_size": 24}
MORE = {
    "glm4_moe": ("glm4_moe", {**FAMILIES["llama"][1], **_GLM, "num_experts_per_tok": 3, "n_shared_experts": 1}),
}
# Config changes, and the form that is to be found.
CASES = [
    ("mixtral", {}, RouterForm(2, "softmax", normalise=True)),
    ("olmoe", {"norm_topk_prob": False}, RouterForm(3, "softmax")),
    ("qwen2_moe", {"norm_topk_prob": False}, RouterForm(2, "softmax")),
    ("qwen2_moe", {"norm_topk_prob": True}, RouterForm(2, "softmax", normalise=True)),
    ("qwen3_moe", {"norm_topk_prob": True}, RouterForm(3, "softmax", normalise=True)),
    ("gpt_oss", {}, RouterForm(2, "softmax_chosen")),
    ("deepseek_v2", {"routed_scaling_factor": 1.7}, RouterForm(3, "softmax", 2, 1, 1, False, 1.7)),
    ("deepseek_v2", {"topk_method": "greedy", "routed_scaling_factor": 1.0}, RouterForm(3, "softmax")),
    (
        "deepseek_v3",
        {"routed_scaling_factor": 2.5},
        RouterForm(3, "sigmoid", 2, 1, 2, True, 2.5, corrected=True),
    ),
    (
        "deepseek_v3",
        {"norm_topk_prob": False, "n_group": 4, "topk_group": 2},
        RouterForm(3, "sigmoid", 4, 2, 2, False, 2.5, corrected=True),
    ),
    ("glm4_moe", {}, RouterForm(3, "sigmoid", 2, 1, 2, True, 1.0, corrected=True)),
]


@pytest.fixture(autouse=True)
def more_families(monkeypatch):
    for name, family in MORE.items():
        monkeypatch.setitem(FAMILIES, name, family)


def block_of(family, seed=None, **changes):
    return tiny_model(family, fresh_seed() if seed is None else seed, **changes).model.layers[-1].mlp


def router_name(block):
    return "router" if hasattr(block, "router") else "gate"


def choices(block, x):
    """What the block makes its experts compute: index and weights [T, K], by expert."""
    seen = []
    handle = block.experts.register_forward_pre_hook(lambda _, args: seen.append(args))
    with torch.no_grad():
        output = block(x)
    handle.remove()
    _, index, weights = seen[0]
    order = index.argsort(-1)
    return index.gather(1, order), weights.gather(1, order), output


@pytest.mark.parametrize(("family", "changes", "form"), CASES)
def test_families(family, changes, form):
    stock = block_of(family, **changes)
    operator = loaded("moe.cpu", stock)
    assert operator.proof.form == form
    assert set(operator.state_dict()) == set(stock.state_dict())
    for shape in ((1, 1, 40), (2, 9, 40)):
        x = torch.randn(*shape)
        (index, weights, output), expected = choices(operator, x), choices(stock, x)
        assert torch.equal(index, expected[0])
        assert relative_difference(weights, expected[1]) < 1e-5
        if isinstance(expected[2], tuple):
            assert len(output) == 2 and relative_difference(output[1], expected[2][1]) < 1e-5
            output, expected = output[0], (*expected[:2], expected[2][0])
        assert relative_difference(output, expected[2]) < 1e-5


def test_no_tokens():
    operator = loaded("moe.cpu", block_of("deepseek_v3"))
    with torch.no_grad():
        assert operator(torch.empty(1, 0, 40)).shape == (1, 0, 40)


def test_choices_are_native_codes_bits():
    operator = loaded("moe.cpu", block_of("deepseek_v3"))
    x = torch.randn(1, 20, 40)
    index, weights = route(x[0], operator.native_router())
    order = index.argsort(-1)
    found = choices(operator, x)
    assert torch.equal(found[0], index.gather(1, order)) and torch.equal(found[1], weights.gather(1, order))


class Jittered(nn.Module):
    """A router that chooses otherwise than by its scores."""

    def __init__(self, router):
        super().__init__()
        self.weight, self.top_k = router.weight, router.top_k

    def forward(self, hidden):
        logits = nn.functional.linear(hidden.reshape(-1, hidden.shape[-1]), self.weight)
        best = (-logits).topk(self.top_k)
        return logits, best.values.softmax(-1), best.indices


def with_jitter(block):
    block.gate = Jittered(block.gate)


def with_another_forward(block):
    block.forward = lambda hidden: hidden


def with_a_hook_on_its_router(block):
    block.gate.register_forward_hook(lambda *_: None)


def with_two_shared_experts(block):
    block.more = copy.deepcopy(block.shared_experts)


def with_a_parameter(block):
    block.scale = nn.Parameter(torch.ones(40))


def without_experts(block):
    block.experts = nn.Linear(40, 40)


def with_a_product_instead_of_a_sum(block):
    class Product(type(block)):
        def forward(self, hidden):
            return super().forward(hidden) * hidden

    block.__class__ = Product


def with_zeros_in_place_of_closed_groups(block):
    """The fault of masking with 0: experts of groups that are left out win where all scores are below it."""

    class Masked(type(block.gate)):
        def forward(self, hidden):
            logits = hidden.reshape(-1, 40).float() @ self.weight.float().T
            scores = logits.sigmoid()
            ranks = scores + self.e_score_correction_bias
            best = ranks.view(-1, self.num_group, 4).topk(2)[0].sum(-1).topk(self.topk_group)[1]
            mask = torch.zeros(len(ranks), self.num_group).scatter_(1, best, 1).repeat_interleave(4, dim=1)
            index = ranks.masked_fill(~mask.bool(), 0.0).topk(self.top_k)[1]
            weights = scores.gather(1, index)
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
            return logits, weights * self.routed_scaling_factor, index

    block.gate.__class__ = Masked


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (with_jitter, "chooses or weights otherwise"),
        (with_zeros_in_place_of_closed_groups, "chooses or weights otherwise"),
        (with_another_forward, "its forward was replaced"),
        (with_a_hook_on_its_router, "its router: it carries forward hooks"),
        (with_two_shared_experts, "more than one shared expert"),
        (with_a_parameter, "it has parameters scale"),
        (without_experts, "no routed experts stand in it"),
        (with_a_product_instead_of_a_sum, "not the sum of its experts"),
    ],
)
def test_others_are_refused(change, reason):
    block = block_of("deepseek_v3")
    change(block)
    assert reason in refusal("moe.cpu", block)


def test_other_dtypes_and_gradients_take_the_stock_forward():
    block = block_of("qwen2_moe")
    operator = loaded("moe.cpu", block)
    x = torch.randn(1, 3, 40, requires_grad=True)
    operator(x).sum().backward()
    assert x.grad is not None
    assert torch.equal(operator(x), block(x))
    half = copy.deepcopy(operator).to(torch.bfloat16)
    assert half(x.detach().bfloat16()).dtype is torch.bfloat16
    assert loaded("moe.cpu", block_of("qwen2_moe")).native_router() is not None and half.native_router() is None


def test_hooks_on_the_router_see_and_change_what_it_says():
    operator = loaded("moe.cpu", block_of("mixtral"))
    x, seen = torch.randn(1, 4, 40), []

    def only_the_first(_, args, output):
        seen.append(args[0])
        return output[0], output[1], torch.zeros_like(output[2])

    handle = operator.gate.register_forward_hook(only_the_first)
    index, _, _ = choices(operator, x)
    assert not index.any() and torch.equal(seen[0].view(1, 4, 40), x)
    with pytest.raises(UnsupportedError, match="watched by hooks"):
        operator.lower(None, None)
    handle.remove()
    assert choices(operator, x)[0].any() and len(seen) == 1


def test_new_weights_are_seen():
    operator = loaded("moe.cpu", block_of("qwen3_moe"))
    x = torch.randn(1, 6, 40)
    before = choices(operator, x)[0]
    with torch.no_grad():
        operator.gate.weight.neg_()
    turned = choices(operator, x)[0]
    assert not torch.equal(turned, before)
    operator.load_state_dict({**operator.state_dict(), "gate.weight": -operator.gate.weight.detach()})
    assert torch.equal(choices(operator, x)[0], before)
    operator.gate.weight = nn.Parameter(-operator.gate.weight.detach(), requires_grad=False)
    assert torch.equal(choices(operator, x)[0], turned)


def test_copies():
    operator = loaded("moe.cpu", block_of("deepseek_v3"))
    x = torch.randn(1, 6, 40)
    with torch.no_grad():
        expected = operator(x)
        for twin in (copy.deepcopy(operator), pickle.loads(pickle.dumps(operator))):
            assert isinstance(twin, CpuMoe) and torch.equal(twin(x), expected)
            twin.gate.weight.zero_()
            assert not torch.equal(twin(x), expected)
        assert torch.equal(operator(x), expected)


@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v3", "gpt_oss"])
def test_whole_models(family):
    """Text as stock makes it, router logits as stock records them, and no other bits because they are recorded."""
    seed = fresh_seed()
    reference = tiny_model(family, seed)
    model = injected(reference)
    assert sum(isinstance(one, CpuMoe) for one in model.modules()) == (1 if family == "deepseek_v3" else 2)
    ids = random_ids(2, 9, torch.Generator().manual_seed(seed))
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with torch.no_grad():
        assert torch.equal(model.generate(ids, **options), reference.generate(ids, **options))
        plain = model(ids).logits
        if family == "deepseek_v3":
            return
        recorded, expected = (one(ids, output_router_logits=True) for one in (model, reference))
        assert len(recorded.router_logits) == len(expected.router_logits) == 2
        for ours, stock in zip(recorded.router_logits, expected.router_logits, strict=True):
            assert relative_difference(ours, stock) < 1e-5
        assert torch.equal(recorded.logits, plain) and torch.equal(model(ids).logits, plain)


class Recorded:
    """Notes what an operator appends."""

    def __init__(self):
        self.steps = []

    def __getattr__(self, name):
        def append(*given, **more):
            self.steps.append((name, *given, *more.values()))
            return (
                self.Routed(*(f"{name} {len(self.steps)} {part}" for part in "iw"))
                if name == "route"
                else len(self.steps)
            )

        return append

    class Routed:
        def __init__(self, index, weights):
            self.index, self.weights = index, weights


def test_lowering():
    operator, builder = loaded("moe.cpu", block_of("qwen2_moe")), Recorded()
    assert operator.lower(builder, 0) == 6
    assert builder.steps == [
        ("route", 0, operator.native_router()),
        ("module", operator.experts, 0, "route 1 i", "route 1 w", 40),
        ("module", operator.shared_expert, 0, 40),
        ("module", operator.shared_expert_gate, 0, 1),
        ("gate", 3, 4),
        ("add", 2, 5),
    ]
    mixtral, builder = loaded("moe.cpu", block_of("mixtral")), Recorded()
    mixtral.lower(builder, 0)
    assert [step[0] for step in builder.steps] == ["route", "module"]
