import copy
import dataclasses

import pytest
import torch
from torch import nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModelForCausalLM,
    ContinuousBatchingConfig,
    DynamicCache,
    StaticCache,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding, apply_rotary_pos_emb

from ktitan.engine.cache import KtitanCache
from ktitan.errors import UnsupportedError
from ktitan.operators import TorchAttention
from ktitan.operators.attention import latent
from ktitan.operators.attention import torch as module_under_test
from ktitan.operators.attention.probe import cache_argument

from support.attention_rig import GROUPED, LATENT, Wrapped, attention_of, logits
from support.operator_rig import (
    StateWeights,
    context_for,
    fresh_seed,
    injected,
    loaded,
    padded_batch,
    random_ids,
    refusal,
    relative_difference,
    tiny_config,
    tiny_model,
)


@pytest.fixture
def seed():
    return fresh_seed()


def with_attention_only(family, seed, **kwargs):
    """(stock model, twin whose attentions alone are replaced, generator)."""
    reference = tiny_model(family, seed, **kwargs)
    if family == "gemma2":
        reference.set_attn_implementation("eager")  # 5.17 drops the cap on scores from its sdpa without a word
    return reference, injected(reference, only={"attention.torch"}), torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("absorb", [True, False, None])
@pytest.mark.parametrize("family", LATENT)
def test_absorbed_and_expanded_give_the_same(family, absorb, seed, monkeypatch):
    reference, model, generator = with_attention_only(family, seed)
    for layer in model.model.layers:
        layer.self_attn.absorb = absorb
    monkeypatch.setattr(latent, "_SCORE_BYTES", 300)  # a few query tokens at a time
    inputs = padded_batch(13, 4, generator)
    seen = inputs["attention_mask"].bool()
    assert relative_difference(logits(model, **inputs)[seen], logits(reference, **inputs)[seen]) < 1e-5
    assert relative_difference(_decoded(model, inputs), _decoded(reference, inputs)) < 1e-5


def _decoded(model, inputs):
    """Logits of the last three tokens of the batch, fed one by one after the others."""
    cache, ids, mask, out = DynamicCache(config=model.config), inputs["input_ids"], inputs["attention_mask"], []
    start = ids.shape[1] - 3
    for begin, end in ((0, start), (start, start + 1), (start + 1, start + 2), (start + 2, start + 3)):
        part = {"input_ids": ids[:, begin:end], "attention_mask": mask[:, :end], "past_key_values": cache}
        part["position_ids"] = (mask.cumsum(1) - 1).clamp_min(0)[:, begin:end]
        out.append(logits(model, **part))
    return torch.cat(out[1:], dim=1)


def test_the_cheaper_form_is_chosen():
    spec = module_under_test.read_spec(attention_of(tiny_model("deepseek_v3", 0)))
    big = dataclasses.replace(spec, rank=512, nope_dim=128, rope_dim=64, value_dim=128)
    assert latent.absorbed_is_cheaper(big, 1, 5000)
    assert not latent.absorbed_is_cheaper(big, 5000, 5000)
    assert not latent.absorbed_is_cheaper(big, 1, 1)


@pytest.mark.parametrize("absorb", [True, None])
def test_children_are_called_as_modules(absorb, seed):
    """Any callable may stand at a child's place, kv_b_proj too: it is then applied to the latents."""
    reference, model, generator = with_attention_only("deepseek_v3", seed)
    for one in (reference, model):
        attention = attention_of(one)
        attention.absorb = absorb
        for name in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"):
            setattr(attention, name, Wrapped(getattr(attention, name)))
    inputs = padded_batch(9, 2, generator)
    assert relative_difference(_decoded(model, inputs), _decoded(reference, inputs)) < 1e-5
    assert attention_of(model).kv_b_proj.calls == 4


@pytest.mark.parametrize("spoil", ["hook", "forward", "subclass", "bias", "dtype"])
def test_weights_are_only_taken_from_plain_projections(spoil):
    linear = nn.Linear(6, 8, bias=spoil == "bias")
    if spoil == "hook":
        linear.register_forward_hook(lambda *_: None)
    elif spoil == "forward":
        linear.forward = lambda x: x
    elif spoil == "subclass":
        linear = type("Own", (nn.Linear,), {"forward": lambda self, x: x})(6, 8, bias=False)
    x = torch.zeros(1, 6, dtype=torch.bfloat16 if spoil == "dtype" else torch.float32)
    assert latent.dense_expansion(linear, x) is None
    assert latent.dense_expansion(nn.Linear(6, 8, bias=False), torch.zeros(1, 6)) is not None


@pytest.mark.parametrize(
    ("family", "beams"), [*((family, 1) for family in GROUPED + LATENT), ("llama", 3), ("deepseek_v3", 3)]
)
def test_generate_on_the_pool_cache(family, beams, seed):
    reference, model, generator = with_attention_only(family, seed)
    inputs = padded_batch(9, 3, generator)
    options = {"max_new_tokens": 9, "do_sample": False, "num_beams": beams, "eos_token_id": None}
    with torch.no_grad():
        expected = reference.generate(**inputs, **options)
        actual = model.generate(**inputs, **options, past_key_values=KtitanCache(model.config))
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
def test_both_names_of_the_cache(family, seed):
    """Layers of one transformers version say `cache`, of the other `past_key_values`; both reach the same code."""
    stock = attention_of(tiny_model(family, seed))
    operator = loaded("attention.torch", stock)
    x = torch.randn(1, 4, stock.config.hidden_size)
    positions = rotation_tables(stock, 1, 4)
    answers = []
    for name in ("cache", "past_key_values", None):
        cache = DynamicCache()
        given = {} if name is None else {name: cache}
        answers.append(operator(x, position_embeddings=positions, **given)[0])
        assert cache.get_seq_length(1) == (0 if name is None else 4)
    assert torch.equal(answers[0], answers[1]) and torch.equal(answers[0], answers[2])
    with torch.no_grad():
        expected = stock(x, position_embeddings=positions, attention_mask=None, **{cache_argument(type(stock)): None})[
            0
        ]
    assert relative_difference(answers[0], expected) < 1e-5


@pytest.mark.parametrize(
    ("family", "absorb", "implementation"),
    [
        ("llama", None, "sdpa"),
        ("llama", None, "eager"),
        ("gpt_oss", None, "sdpa"),
        ("deepseek_v3", True, "sdpa"),
        ("deepseek_v3", False, "sdpa"),
        ("deepseek_v3", False, "eager"),
    ],
)
def test_missing_mask(family, absorb, implementation, seed):
    """Without a mask: one token sees all, several see themselves and earlier ones, on an empty static cache too."""
    stock = attention_of(tiny_model(family, seed))
    operator = loaded("attention.torch", stock)
    operator.absorb = absorb
    operator.config._attn_implementation = implementation
    x = torch.randn(2, 6, stock.config.hidden_size)
    cos, sin = rotation_tables(stock, 2, 6)

    def call(cache, start, stop, **kwargs):
        positions = (cos[:, start:stop], sin[:, start:stop])
        return operator(x[:, start:stop], position_embeddings=positions, cache=cache, **kwargs)[0]

    whole = call(None, 0, 6)
    for cache in (DynamicCache(), StaticCache(config=_plain(stock.config), max_cache_len=16)):
        assert relative_difference(call(cache, 0, 5), whole[:, :5]) < 1e-5
    dynamic = DynamicCache()
    call(dynamic, 0, 5)
    assert relative_difference(call(dynamic, 5, 6), whole[:, 5:]) < 1e-5
    dynamic = DynamicCache()
    call(dynamic, 0, 2)
    with pytest.raises(UnsupportedError, match=r"layer\.module: 4 tokens follow earlier ones"):
        call(dynamic, 2, 6)
    both_ways = call(None, 0, 6, is_causal=False)
    assert relative_difference(both_ways[:, :5], whole[:, :5]) > 1e-3
    assert relative_difference(both_ways[:, 5:], whole[:, 5:]) < 1e-5


def rotation_tables(stock, rows, tokens):
    """Random (cos, sin) of the width that a family's rotary function takes."""
    width = getattr(stock, "qk_rope_head_dim", getattr(stock, "head_dim", 0))
    halves = torch.rand(rows, tokens, width // 2)
    angles = halves if "sinks" in stock._parameters else halves.repeat(1, 1, 2)
    return angles.cos(), angles.sin()


def _plain(config):
    """A config without windows, so that every layer of a static cache keeps all tokens."""
    config = copy.deepcopy(config)
    config.layer_types = ["full_attention"] * config.num_hidden_layers
    return config


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "deepseek_v3"])
def test_weights_are_returned_where_they_are_made(family, seed):
    stock = attention_of(tiny_model(family, seed))
    operator = loaded("attention.torch", stock)
    call = {"position_embeddings": rotation_tables(stock, 2, 5)}
    mask = torch.zeros(2, 1, 5, 5).masked_fill(~torch.ones(5, 5, dtype=torch.bool).tril(), torch.finfo().min)
    x = torch.randn(2, 5, 40)
    operator.config._attn_implementation = "eager"
    with torch.no_grad():
        expected = type(stock).forward(stock, x, attention_mask=mask, **call)[1]
    assert relative_difference(operator(x, attention_mask=mask, **call)[1], expected) < 1e-5
    operator.config._attn_implementation = "sdpa"
    assert (operator(x, attention_mask=mask, **call)[1] is None) == (family != "gpt_oss")


def test_sinks_are_loaded_and_count(seed):
    model = tiny_model("gpt_oss", seed)
    stock = attention_of(model)
    operator = loaded("attention.torch", stock)
    assert set(operator.state_dict()) == set(stock.state_dict())
    assert torch.equal(operator.sinks, stock.sinks) and operator.sinks is not stock.sinks
    assert not operator.sinks.requires_grad
    weights = StateWeights(stock, own_only=True)
    operator.load(weights)
    assert weights.asked == ["sinks"]
    x = torch.randn(1, 5, 40)
    positions = rotation_tables(stock, 1, 5)
    before = operator(x, position_embeddings=positions)[0]
    with torch.no_grad():
        operator.sinks.fill_(50.0)  # a sink that takes everything leaves nothing but the output's bias
    after = operator(x, position_embeddings=positions)[0]
    assert torch.allclose(after, operator.o_proj.bias.expand_as(after), atol=1e-6)
    assert relative_difference(before, after) > 1e-2


@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_continuous_batching(family, seed):
    """transformers' paged attention runs through the stock forward on the operator's children."""
    reference, model, generator = with_attention_only(family, seed)
    prompts = [random_ids(1, n, generator)[0].tolist() for n in (5, 9)]
    options = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": -1}
    small = ContinuousBatchingConfig(num_blocks=4, max_batch_tokens=64)
    answers = []
    for one in (reference, model):
        one.generation_config.update(**options)
        outputs = one.generate_batch(prompts, one.generation_config, small, warmup=False)
        answers.append(sorted((tuple(o.prompt_ids), tuple(o.generated_tokens)) for o in outputs.values()))
    assert answers[0] == answers[1]
    assert all(len(tokens) == 5 for _, tokens in answers[1])


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3"])
def test_another_implementation_runs_the_stock_forward(family, seed):
    """What a user registers with transformers is called as it is by the stock class."""
    reference, model, generator = with_attention_only(family, seed)
    inputs = padded_batch(9, 2, generator)
    seen = []

    def counted(module, *args, **kwargs):
        seen.append(type(module))
        return sdpa_attention_forward(module, *args, **kwargs)

    AttentionInterface.register("counted", counted)
    AttentionMaskInterface.register("counted", sdpa_mask)
    for one in (reference, model):
        one.set_attn_implementation("counted")
    assert torch.equal(logits(model, **inputs), logits(reference, **inputs))
    assert torch.equal(_decoded(model, inputs), _decoded(reference, inputs))
    assert seen == [type(attention_of(reference))] * len(seen) and len(seen) == 2 * 2 * 5


def test_self_check_finds_wrong_numbers(seed, monkeypatch):
    monkeypatch.setattr(module_under_test, "_agreed", set())
    for family in ("llama", "deepseek_v2", "gpt_oss"):
        operator = loaded("attention.torch", attention_of(tiny_model(family, seed)), path="model.layers.1.self_attn")
        operator.self_check()
        operator.spec = dataclasses.replace(operator.spec, scaling=operator.spec.scaling * 1.2)
        with pytest.raises(UnsupportedError, match=r"model\.layers\.1\.self_attn: attention\.torch and \w+Attention"):
            operator.self_check()


def test_self_check_runs_once_a_class_and_dtype(seed, monkeypatch):
    monkeypatch.setattr(module_under_test, "_agreed", set())
    operator = loaded("attention.torch", attention_of(tiny_model("llama", seed)))
    other = loaded("attention.torch", attention_of(tiny_model("llama", seed).bfloat16()), torch.bfloat16)
    operator.self_check()
    compared = []
    monkeypatch.setattr(module_under_test, "_difference", lambda *call: compared.append(call) or 0.0)
    operator.self_check()
    assert not compared
    other.self_check()
    assert len(compared) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_oss", "deepseek_v2", "deepseek_v3"])
def test_self_check_leaves_room_for_rounding(family, dtype, monkeypatch):
    monkeypatch.setattr(module_under_test, "_agreed", set())
    for _ in range(3):
        stock = attention_of(tiny_model(family, fresh_seed(), dtype=dtype))
        loaded("attention.torch", stock, dtype).self_check()
        module_under_test._agreed.clear()


def altered(family, change):
    attention = attention_of(tiny_model(family, 0))
    change(attention)
    return attention


def unnormed_model(model_type, **entries):
    """A layer of a family that this operator does not know."""
    config = AutoConfig.for_model(model_type, hidden_size=32, num_attention_heads=4, vocab_size=50, **entries)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize(
    ("module", "clause"),
    [
        (nn.MultiheadAttention(8, 2), "it has no config"),
        (altered("llama", lambda m: setattr(m, "indexer", nn.Linear(2, 2))), "children indexer"),
        (altered("llama", lambda m: setattr(m, "gate", nn.Parameter(torch.ones(3)))), "parameters gate"),
        (altered("llama", lambda m: m.register_buffer("slope", torch.ones(3))), "buffers slope"),
        (altered("llama", lambda m: setattr(m, "scaling", torch.ones(3))), "scaling is a Tensor"),
        (altered("llama", lambda m: setattr(m, "scaling", 0.2)), None),
        (altered("llama", lambda m: setattr(m, "head_dim", 7)), "whole groups"),
        (altered("llama", lambda m: setattr(m, "q_proj", nn.Linear(40, 80))), "not those of plain attention"),
        (altered("llama", lambda m: setattr(m, "q_proj", nn.Identity())), "not a linear layer"),
        (altered("llama", lambda m: setattr(m, "q_norm", nn.LayerNorm(3))), "fit neither one head nor all heads"),
        (altered("llama", lambda m: delattr(m, "q_proj")), "no q_proj"),
        (altered("llama", lambda m: m.register_forward_hook(lambda *_: None)), "hooks"),
        (altered("deepseek_v3", lambda m: setattr(m, "kv_b_proj", nn.Linear(16, 60))), "not those of latent attention"),
        (altered("deepseek_v3", lambda m: setattr(m, "indexer", nn.Linear(2, 2))), "children indexer"),
    ],
)
def test_refuses_by_structure(module, clause):
    reason = refusal("attention.torch", module)
    assert reason is None if clause is None else clause in reason


def test_layers_without_rotation_are_refused_by_their_numbers():
    """SmolLM3 leaves the rotation out in every fourth layer: the same class, the same parts, other numbers."""
    model = unnormed_model("smollm3", num_hidden_layers=4, num_key_value_heads=2, intermediate_size=16, pad_token_id=0)
    reasons = [refusal("attention.torch", layer.self_attn) for layer in model.model.layers]
    assert reasons[:3] == [None] * 3
    assert "SmolLM3Attention computes something else" in reasons[3]


@pytest.mark.parametrize(
    ("model_type", "entries"),
    [
        ("llama4_text", {"num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 4, "intermediate_size": 16}),
        ("qwen3_next", {"num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 4, "intermediate_size": 16}),
        ("phi3", {"num_hidden_layers": 1, "intermediate_size": 16, "pad_token_id": 0}),
    ],
)
def test_other_attentions_are_refused(model_type, entries):
    model = unnormed_model(model_type, **entries)
    modules = [layer.self_attn for layer in model.model.layers if hasattr(layer, "self_attn")]
    assert modules and all(refusal("attention.torch", module) for module in modules)


class LouderAttention(LlamaAttention):
    """Made of Llama's parts, with a formula that depends on the config."""

    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, **kwargs):
        assert apply_rotary_pos_emb
        output, weights = super().forward(hidden_states, position_embeddings, attention_mask, **kwargs)
        return output * self.config.loudness, weights


class ClippedAttention(LlamaAttention):
    """Llama's formula, but for inputs of a size that few meet."""

    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, **kwargs):
        assert apply_rotary_pos_emb
        return super().forward(hidden_states.clamp(-40, 40), position_embeddings, attention_mask, **kwargs)


LouderRotaryEmbedding = ClippedRotaryEmbedding = LlamaRotaryEmbedding


def test_large_numbers_are_tried_too():
    assert "computes something else" in refusal("attention.torch", ClippedAttention(tiny_config("llama"), 0))


def test_a_subclass_with_another_formula_is_refused():
    reasons = []
    for loudness in (1.0, 1.01, 1.0):
        config = tiny_config("llama")
        config.loudness = loudness
        reasons.append(refusal("attention.torch", LouderAttention(config, 0)))
    assert reasons[0] is None and reasons[2] is None
    assert "LouderAttention computes something else: outputs differ by 9.9e-03" in reasons[1]


def test_a_config_decides_not_only_the_class(seed):
    """Two DeepSeek-V3 layers of equal sizes that rotate differently are told apart."""
    for family in ("deepseek_v3", "deepseek_v3_plain", "deepseek_v3"):
        attention = attention_of(tiny_model(family, seed))
        operator = loaded("attention.torch", attention)
        assert operator.rotation.name.endswith("interleave") == (family == "deepseek_v3")


def test_from_module_refuses_too():
    with pytest.raises(UnsupportedError, match="here"):
        TorchAttention.from_module(nn.MultiheadAttention(8, 2), None, context_for(nn.Identity(), "here"))


def test_real_sizes_are_probed_without_real_weights():
    """The probe of a full DeepSeek-V3 layer on meta allocates a small copy only."""
    config = AutoConfig.for_model("deepseek_v3", num_hidden_layers=1)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config).eval()
    assert refusal("attention.torch", model.model.layers[0].self_attn) is None
