"""What is not lowered keeps its effect: users' operators, stock layers, hooks."""

import copy

import pytest
import torch
from torch import nn

import ktitan
from ktitan.operator import Operator
from ktitan.operators.linear.cpu import CpuLinear
from ktitan.program import NoProgram, build_program
from ktitan.registry import operators

from support.operator_rig import fresh_seed, tiny_model
from support.programs import CPU, assert_same_steps, kinds, module_logits, native_cache, on_cpu, program_of, random_ids


class _Halved(Operator):
    """An MLP that is another function than the stock one."""

    keeps_children = True

    def __init__(self, module):
        super().__init__()
        for name, child in module._modules.items():
            self.register_module(name, child)

    @classmethod
    def supports(cls, context, config):
        return None

    @classmethod
    def from_module(cls, module, config, context):
        return cls(module)

    def load(self, weights):
        pass

    def forward(self, x):
        return self.down_proj(self.up_proj(x)) / 2


class _Doubled(CpuLinear):
    """Another forward under an inherited `lower`."""

    def forward(self, input):
        return 2 * super().forward(input)


@pytest.fixture
def register():
    """Register an operator for one test."""
    names = []

    def enter(name, kind):
        ktitan.register_operator(name)(kind)
        names.append(name)

    yield enter
    for name in names:
        operators._entries.pop(name)


def with_rule(match, name):
    """The .cpu rules behind one of the user's."""
    rules = copy.deepcopy(CPU)
    rules["rules"].insert(0, {"match": match, "replace": {"class": name}})
    return rules


def both(seed, rules, family="llama"):
    """Logits of a model by plain rules and by `rules`, the program of the latter, and the model."""
    plain, other = on_cpu(tiny_model(family, seed)), on_cpu(tiny_model(family, seed), rules)
    ids = random_ids(plain, 9, seed)
    assert not torch.equal(*(module_logits(model, ids, native_cache(model)) for model in (plain, other)))
    return other, program_of(other)


@pytest.mark.parametrize(
    ("match", "kind", "path"),
    [
        ({"name": r"model\.layers\.1\.mlp"}, _Halved, "model.layers.1.mlp"),
        ({"name": r"model\.layers\.0\.self_attn\.k_proj"}, _Doubled, "model.layers.0.self_attn.k_proj"),
        ({"name": "lm_head"}, _Doubled, "lm_head"),
    ],
)
def test_one_child_of_a_user_keeps_its_effect_and_is_seen(register, match, kind, path):
    register("test.mine", kind)
    seed = fresh_seed()
    model, program = both(seed, with_rule(match, "test.mine"))
    assert set(program.reasons) == {path}
    (line,) = [line for line in program.text().splitlines() if "in Python" in line]
    assert path in line and kind.__name__ in line
    assert_same_steps(model, program, random_ids(model, 75, seed), (20, 70, 71))


class _Unusual(nn.Module):
    """A decoder layer whose parts hang together in a way that is no sum."""

    def __init__(self, layer):
        super().__init__()
        self.inner = layer

    def forward(self, hidden_states, **kwargs):
        return torch.tanh(self.inner(hidden_states, **kwargs))


@pytest.mark.parametrize("family", ["llama", "gemma3", "deepseek_v3"])
def test_a_stock_layer_in_the_middle(family):
    """Its attention works on the same pages, with the masks of the stock model."""
    seed = fresh_seed()
    stock = tiny_model(family, seed, num_hidden_layers=3, **({"layer_types": None} if family == "gemma3" else {}))
    model = on_cpu(stock)
    model.model.layers[1] = _Unusual(model.model.layers[1])
    program = program_of(model)
    assert set(program.reasons) == {"model.layers.1"}
    assert kinds(program).count("attend") == 2
    assert_same_steps(model, program, random_ids(model, 75, seed), (20, 70, 71))


def test_stock_attention_in_a_known_layer():
    seed = fresh_seed()
    rules = copy.deepcopy(CPU)
    rules["rules"].insert(
        0, {"match": {"name": r"model\.layers\.0\.self_attn"}, "replace": {"class": "attention.torch"}}
    )
    model = on_cpu(tiny_model("qwen3_moe", seed), rules)
    program = program_of(model)
    assert set(program.reasons) == {"model.layers.0.self_attn"}
    assert_same_steps(model, program, random_ids(model, 75, seed), (20, 70, 71))


def test_hooks_see_their_calls_and_change_what_they_change():
    seed, seen = fresh_seed(), []
    model = on_cpu(tiny_model("llama", seed))

    def hook(module, args, output):
        seen.append(output.shape)
        return output + 1

    handles = [
        model.model.layers[0].mlp.up_proj.register_forward_hook(hook),
        model.model.layers[1].register_forward_hook(hook),
    ]
    program = program_of(model)
    assert set(program.reasons) == {"model.layers.0.mlp.up_proj", "model.layers.1"}
    assert_same_steps(model, program, random_ids(model, 75, seed), (20, 70, 71))
    assert len(seen) == 2 * 2 * (2 + 4)  # both hooks, both ways, in the check and here
    for handle in handles:
        handle.remove()
    assert not program_of(model).reasons


def test_hooks_around_the_layers_leave_no_program():
    model = on_cpu(tiny_model("llama", 1))
    model.model.register_forward_hook(lambda module, args, output: None)
    refused = build_program(model, lambda: native_cache(model))
    assert isinstance(refused, NoProgram) and "hook" in refused.reason


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("dynamic", "length of the sequence"), ("longrope", "length of the sequence"), ("linear", None), ("yarn", None)],
)
def test_rotary_types(kind, reason):
    more = {"dynamic": {}, "linear": {}, "yarn": {}}.get(kind, {})
    if kind == "longrope":
        more = {"short_factor": [1.0] * 5, "long_factor": [4.0] * 5, "original_max_position_embeddings": 64}
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0, **more}
    model = on_cpu(tiny_model("llama", fresh_seed(), rope_parameters=rope))
    made = build_program(model, lambda: native_cache(model))
    assert isinstance(made, NoProgram) == (reason is not None), getattr(made, "reason", "")
    assert reason is None or reason in made.reason


def test_a_program_that_computes_otherwise_is_refused(register):
    class Wrong(CpuLinear):
        def lower(self, builder, x):
            return builder.scale(super().lower(builder, x), 1.001)

    register("test.wrong", Wrong)
    model = on_cpu(
        tiny_model("llama", fresh_seed()), with_rule({"name": r"model\.layers\.1\.mlp\.up_proj"}, "test.wrong")
    )
    refused = build_program(model, lambda: native_cache(model))
    assert isinstance(refused, NoProgram) and "differ" in refused.reason


def test_models_of_torch_operators_run_as_modules():
    model = on_cpu(tiny_model("llama", 1), {"version": 1, "rules": []})
    refused = build_program(model, lambda: native_cache(model))
    assert isinstance(refused, NoProgram) and "none of its modules" in refused.reason
    assert "bfloat16" in build_program(model.bfloat16(), lambda: native_cache(model)).reason


def test_a_window_that_is_not_the_models_is_refused():
    """A short prompt would not show it."""
    model = on_cpu(tiny_model("gemma3", fresh_seed(), sliding_window=64))
    program_of(model)
    model.model.layers[0].self_attn.window = 65
    refused = build_program(model, lambda: native_cache(model))
    assert isinstance(refused, NoProgram) and "window of 65" in refused.reason
