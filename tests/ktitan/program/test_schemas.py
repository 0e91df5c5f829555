"""How layers hang together is found by running their own forwards; families that transformers has are examples."""

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from ktitan.operator import probing
from ktitan.program.schema import Answers, ChildCall, Schema, layer_schema, solve_calls
from ktitan.program.trace import ModelTrace
from ktitan.program.traced import Called

_COMMON = {
    "vocab_size": 61,
    "hidden_size": 40,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
CHANGES = {"granite": {"residual_multiplier": 0.22, "logits_scaling": 4.0, "embedding_multiplier": 12.0}}


def model_of(family):
    config = AutoConfig.for_model(family, **{**_COMMON, **CHANGES.get(family, {})})
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def traced(model):
    trace = ModelTrace(model)
    with probing():
        calls, logits = trace.run(torch.arange(3), 0, None, Answers(0))
    return trace, calls, logits


@pytest.mark.parametrize("family", ["llama", "gemma2", "olmo2", "granite", "cohere"])
def test_a_layer_is_what_its_forward_says(family):
    model = model_of(family)
    trace, calls, _ = traced(model)
    layers = trace.layer_calls(calls)
    assert sorted(layers) == [0, 1]
    for number, called in layers.items():
        layer = model.model.layers[number]
        schema = layer_schema(layer, called, number)
        assert isinstance(schema, Schema), schema
        assert all(call.extra is not None for call in schema.values if isinstance(call, ChildCall))
        assert torch.equal(computed(schema, layer), direct(layer))


def computed(schema, layer):
    """The schema on stand-ins."""
    made = []
    for value in schema.values:
        if value is None:
            made.append(_inputs())
        elif isinstance(value, ChildCall):
            made.append(_part(layer.get_submodule(value.path), made[value.given]))
        elif value.kind == "add":
            made.append(made[value.parts[0]] + made[value.parts[1]])
        else:
            made.append(made[value.parts[0]] * value.factor)
    return made[schema.result]


def direct(layer):
    """The layer's own forward, with the same functions for children."""
    for name, child in list(layer.named_children()):
        setattr(layer, name, _Part(child, name == "self_attn"))
    out = layer(_inputs(), position_embeddings=None, attention_mask=None)
    for name, child in list(layer.named_children()):
        setattr(layer, name, child.module[0])
    return out[0] if isinstance(out, tuple) else out


class _Part(nn.Module):
    def __init__(self, module, is_tuple):
        super().__init__()
        self.module = (module,)
        self.is_tuple = is_tuple

    def forward(self, hidden_states, **kwargs):
        out = _part(self.module[0], hidden_states)
        return (out, None) if self.is_tuple else out


def _part(module, x):
    """A function of its own for each class of child."""
    return torch.sin(x * (1 + len(type(module).__name__) / 10)).cumsum(-1)


def _inputs():
    return torch.randn((1, 4, 40), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("family", ["llama", "olmo2", "granite", "cohere"])
def test_a_model_is_embedding_layers_norm_and_head(family):
    model = model_of(family)
    _, calls, logits = traced(model)
    schema = solve_calls(calls, logits, None, lambda _: None)
    assert isinstance(schema, Schema), schema
    paths = [value.path for value in schema.values if isinstance(value, ChildCall)]
    assert paths == ["model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm", "lm_head"]
    kinds = [value.kind for value in schema.values if not isinstance(value, ChildCall)]
    scaled = {"granite": 2, "cohere": 1}.get(family, 0)
    assert sorted(kinds) == ["last"] + ["scale"] * scaled


def test_soft_capped_logits_are_no_sum():
    _, calls, logits = traced(model_of("gemma2"))
    assert "returns" in solve_calls(calls, logits, None, lambda _: None)


class _Strange(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.part = nn.Linear(8, 8)
        self._forward = (forward,)

    def forward(self, hidden_states):
        return self._forward[0](self, hidden_states)


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (lambda self, x: x + self.part(x) * self.part(x), "no sum or multiple"),
        (lambda self, x: x + self.part(torch.relu(x)), "hands to part"),
        (lambda self, x: None, "returns no tensor"),
        (lambda self, x: x + self.missing(x), "could not be tried"),
        (lambda self, x: x + self.part.weight.sum(), "no sum or multiple"),
    ],
)
def test_what_is_no_sum_has_a_reason(forward, reason):
    layer, x = _Strange(forward), torch.randn(1, 3, 8)
    found = layer_schema(layer, Called("layer", layer, (x,), {}, x, False), 0)
    assert isinstance(found, str) and reason in found, found
