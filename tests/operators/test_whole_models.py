"""Every module of tiny models replaced: logits, cached decode, padded batches and greedy text against stock."""

import copy
import pickle

import pytest
import torch
from transformers import DynamicCache, StaticCache

from ktitan.errors import UnsupportedError
from ktitan.operator import Operator

from support.operator_rig import (
    FAMILIES,
    fresh_seed,
    injected,
    padded_batch,
    random_ids,
    relative_difference,
    tiny_model,
)


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def pair(request):
    """(stock model, injected twin, generator) of one family."""
    seed = fresh_seed()
    reference = tiny_model(request.param, seed)
    if request.param == "gemma2":
        reference.set_attn_implementation("eager")  # 5.17 drops the cap on scores from its sdpa without a word
    return reference, injected(reference), torch.Generator().manual_seed(seed)


def logits(model, **inputs):
    with torch.no_grad():
        return model(**inputs).logits


def test_every_module_is_an_operator(pair):
    reference, model, _ = pair
    kinds = {m.operator_name for m in model.modules() if isinstance(m, Operator)}
    assert {"attention.torch", "embedding.torch", "linear.torch", "norm.torch"} <= kinds
    sparse = any("experts" in name for name, _ in reference.named_modules())
    assert ("experts.torch" in kinds) == ("moe.cpu" in kinds) == sparse
    assert sparse or "mlp.cpu" in kinds
    assert set(model.state_dict()) == set(reference.state_dict())
    assert not any(parameter.requires_grad for parameter in model.get_input_embeddings().parameters())


@pytest.mark.parametrize("tokens", [1, 9, 23])
def test_logits(pair, tokens):
    reference, model, generator = pair
    ids = random_ids(2, tokens, generator)
    assert relative_difference(logits(model, input_ids=ids), logits(reference, input_ids=ids)) < 1e-5


def test_far_positions(pair):
    """YaRN's two corrections show themselves only away from position 0."""
    reference, model, generator = pair
    ids = random_ids(1, 7, generator)
    inputs = {"input_ids": ids, "position_ids": torch.arange(200, 207)[None]}
    assert relative_difference(logits(model, **inputs), logits(reference, **inputs)) < 1e-5


def test_left_padding(pair):
    reference, model, generator = pair
    inputs = padded_batch(11, 4, generator)
    seen = inputs["attention_mask"].bool()
    actual, expected = logits(model, **inputs), logits(reference, **inputs)
    assert torch.isfinite(actual).all()
    assert relative_difference(actual[seen], expected[seen]) < 1e-5


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_cached_decode(pair, kind):
    """A prompt, a chunk of three and single tokens through a cache; both models fill it with the same tensors."""
    reference, model, generator = pair
    ids = random_ids(2, 14, generator)
    caches = [_cache(kind, one.config) for one in (model, reference)]
    for start, stop in ((0, 9), (9, 12), (12, 13), (13, 14)):
        actual, expected = (
            logits(one, input_ids=ids[:, start:stop], past_key_values=cache)
            for one, cache in zip((model, reference), caches, strict=True)
        )
        assert relative_difference(actual, expected) < 1e-5
    for mine, stock in zip(caches[0].layers, caches[1].layers, strict=True):
        assert relative_difference(mine.keys, stock.keys) < 1e-5
        assert relative_difference(mine.values, stock.values) < 1e-5


def _cache(kind, config):
    return DynamicCache(config=config) if kind == "dynamic" else StaticCache(config=config, max_cache_len=20)


def test_greedy_text(pair):
    reference, model, generator = pair
    inputs = padded_batch(8, 3, generator)
    options = {"max_new_tokens": 32, "do_sample": False, "eos_token_id": None}
    with torch.no_grad():
        assert torch.equal(model.generate(**inputs, **options), reference.generate(**inputs, **options))


def test_eager_implementation(pair):
    reference, model, generator = pair
    inputs = padded_batch(9, 2, generator)
    seen = inputs["attention_mask"].bool()
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        assert relative_difference(logits(model, **inputs)[seen], logits(reference, **inputs)[seen]) < 1e-5
    finally:
        model.set_attn_implementation(before)


def test_copies_keep_their_numbers(pair):
    _, model, generator = pair
    ids = random_ids(1, 6, generator)
    expected = logits(model, input_ids=ids)
    for clone in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(logits(clone, input_ids=ids), expected)
    clone.load_state_dict(model.state_dict())
    assert torch.equal(logits(clone.to("cpu"), input_ids=ids), expected)


def test_attentions_are_refused(pair):
    _, model, generator = pair
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with pytest.raises(UnsupportedError, match="output_attentions"):
            logits(model, input_ids=random_ids(1, 4, generator), output_attentions=True)
    finally:
        model.set_attn_implementation(before)


@pytest.mark.parametrize(
    ("family", "every_expert"),
    [
        ("qwen3_moe", {"num_experts_per_tok": 6}),
        ("deepseek_v3", {"num_experts_per_tok": 8, "topk_group": 2}),
        ("gemma3", {}),
        ("gpt_oss", {"num_experts_per_tok": 5}),
    ],
)
def test_half_precision(family, every_expert):
    """bfloat16 logits are as near to the truth as stock's. All experts take part: else a near tie may tip a router."""
    seed = fresh_seed()
    reference = tiny_model(family, seed, dtype=torch.bfloat16, **every_expert)
    model = injected(reference, dtype=torch.bfloat16)
    ids = random_ids(2, 12, torch.Generator().manual_seed(seed))
    actual, expected = logits(model, input_ids=ids), logits(reference, input_ids=ids)
    assert actual.dtype == torch.bfloat16
    exact = logits(reference.float(), input_ids=ids)
    assert _rms(actual - exact) < 1.5 * _rms(expected - exact) + 1e-3 * _rms(exact)


def _rms(x):
    return float(x.double().pow(2).mean().sqrt())


def test_tied_head_is_one_tensor():
    model = injected(tiny_model("qwen2", fresh_seed()))
    assert model.lm_head.weight is model.model.embed_tokens.weight
