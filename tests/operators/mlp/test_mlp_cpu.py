"""`mlp.cpu` against the stock MLPs, and what it refuses."""

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN

from ktitan.operators.mlp.parts import read_parts

from support.operator_rig import fresh_seed, loaded, refusal, relative_difference, tiny_model

FAMILIES = ["llama", "qwen2", "gemma2", "gemma3", "qwen2_moe", "deepseek_v2", "deepseek_v3"]


def mlp_of(family):
    layer = tiny_model(family, fresh_seed()).model.layers[0].mlp
    return getattr(layer, "shared_expert", layer)


class Plain(nn.Module):
    """down(act(up(x))), with other names."""

    def __init__(self, hidden=24, inner=40, act="gelu_pytorch_tanh"):
        super().__init__()
        self.fc2, self.act, self.fc1 = nn.Linear(inner, hidden), ACT2FN[act], nn.Linear(hidden, inner)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class Changed(Plain):
    """Like an MLP, but what comes in goes out, too."""

    def forward(self, x):
        return x + super().forward(x)


class Clipped(Plain):
    def forward(self, x):
        return self.fc2(self.act(self.fc1(x).clamp(max=30)))


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family):
    stock = mlp_of(family)
    operator = loaded("mlp.cpu", stock)
    assert operator.parts.children == ("gate_proj", "up_proj", "down_proj")
    for shape in ((1, 1), (3, 7), (0, 4)):
        x = torch.randn(*shape, operator.parts.hidden)
        with torch.no_grad():
            expected, found = stock(x), operator(x)
        assert found.shape == expected.shape and (not x.numel() or relative_difference(found, expected) < 1e-5)
    assert set(operator.state_dict()) == set(stock.state_dict())


@pytest.mark.parametrize(("hidden", "inner"), [(24, 40), (40, 24), (32, 32)])
def test_plain_ones(hidden, inner):
    stock = Plain(hidden, inner).eval()
    operator = loaded("mlp.cpu", stock)
    assert operator.parts.gate is None and operator.parts.children == ("fc1", "fc2")
    x = torch.randn(5, hidden)
    with torch.no_grad():
        assert relative_difference(operator(x), stock(x)) < 1e-5


def test_equal_widths_are_told_apart_by_their_numbers():
    stock = tiny_model("llama", fresh_seed(), intermediate_size=40).model.layers[0].mlp
    assert read_parts(stock).children == ("gate_proj", "up_proj", "down_proj")


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Plain(act="relu"), "it computes no down"),
        (Plain(act="gelu"), "it computes no down"),
        (Changed(), "it computes no down"),
        (Clipped(), "it computes no down"),
        (nn.Sequential(nn.Linear(4, 4)), "not made of two or three"),
        (nn.Sequential(nn.Linear(4, 8), nn.Linear(9, 4)), "sizes of its linear layers do not fit"),
        (nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 4)), "not made of two or three"),
    ],
)
def test_others_are_refused(module, reason):
    assert reason in refusal("mlp.cpu", module.eval())


def test_hooks_and_places_are_refused():
    hooked = Plain()
    hooked.act.register_forward_hook(lambda *_: None)
    assert "it carries forward hooks" in refusal("mlp.cpu", hooked)


def test_what_native_code_cannot_take_goes_through_the_stock_forward():
    stock = mlp_of("llama")
    operator = loaded("mlp.cpu", stock)
    x = torch.randn(2, operator.parts.hidden, requires_grad=True)
    operator(x).sum().backward()
    assert x.grad is not None
    half = operator.to(torch.bfloat16)
    assert half(x.detach().bfloat16()).dtype is torch.bfloat16


class Recorded:
    """Notes what an operator appends."""

    def __init__(self):
        self.steps = []

    def module(self, module, *inputs, width):
        self.steps.append(("module", module, inputs, width))
        return len(self.steps)

    def activate(self, name, gate, up):
        self.steps.append(("activate", name, gate, up))
        return len(self.steps)


def test_lowering():
    operator, builder = loaded("mlp.cpu", mlp_of("llama")), Recorded()
    assert operator.lower(builder, 0) == 4
    assert builder.steps == [
        ("module", operator.up_proj, (0,), 56),
        ("module", operator.gate_proj, (0,), 56),
        ("activate", "silu", 2, 1),
        ("module", operator.down_proj, (3,), 40),
    ]
    plain, builder = loaded("mlp.cpu", Plain().eval()), Recorded()
    plain.lower(builder, 0)
    assert [step[0] for step in builder.steps] == ["module", "activate", "module"]
    assert builder.steps[1] == ("activate", "gelu_tanh", 1, None)
