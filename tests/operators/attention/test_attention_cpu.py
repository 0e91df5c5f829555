import copy
import dataclasses
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM, DynamicCache, StaticCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ktitan.engine.cache import KtitanCache
from ktitan.engine.kv_native import NativeKVPool
from ktitan.errors import UnsupportedError
from ktitan.native.library import set_threads, threads
from ktitan.operators import CpuAttention, float32
from ktitan.operators.attention import native
from ktitan.operators.attention import torch as torch_attention
from ktitan.operators.attention.probe import cache_argument, embed_positions
from ktitan.operators.attention.turning import find_turning

from support.attention_rig import GROUPED, LATENT, Wrapped, attention_of, logits
from support.eager_builder import EagerBuilder
from support.operator_rig import (
    ON_CPU,
    context_for,
    fresh_seed,
    injected,
    loaded,
    padded_batch,
    random_ids,
    refusal,
    relative_difference,
    tiny_model,
)
from support.tiny_models import CONFIGS

FAMILIES = GROUPED + LATENT


@pytest.fixture
def seed():
    return fresh_seed()


def with_attention_and_norms(family, seed):
    """(stock model, twin whose attentions and norms are the native ones, generator)."""
    reference = tiny_model(family, seed)
    if family == "gemma2":
        reference.set_attn_implementation("eager")  # 5.17 drops the cap on scores from its sdpa without a word
    return reference, injected(reference, only=set(ON_CPU), swapped=ON_CPU), torch.Generator().manual_seed(seed)


def pool_cache(config=None):
    return KtitanCache(config, pool=NativeKVPool())


def caches(config):
    return {
        "dynamic": DynamicCache(config=config),
        "static": StaticCache(config=config, max_cache_len=24),
        "pool": pool_cache(config),
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_like_stock(family, seed):
    """Whole prompts, left padding, and steps of several sizes through each kind of cache."""
    reference, model, generator = with_attention_and_norms(family, seed)
    assert {type(layer.self_attn) for layer in model.model.layers} == {CpuAttention}
    ids = random_ids(2, 17, generator)
    whole = logits(reference, input_ids=ids)
    assert relative_difference(logits(model, input_ids=ids), whole) < 1e-5
    inputs = padded_batch(11, 4, generator)
    seen = inputs["attention_mask"].bool()
    assert relative_difference(logits(model, **inputs)[seen], logits(reference, **inputs)[seen]) < 1e-5
    for cache in caches(model.config).values():
        for start, stop in ((0, 9), (9, 12), (12, 13), (13, 17)):
            actual = logits(model, input_ids=ids[:, start:stop], past_key_values=cache)
            assert relative_difference(actual, whole[:, start:stop]) < 1e-5
    model.set_attn_implementation("eager")
    assert relative_difference(logits(model, **inputs)[seen], logits(reference, **inputs)[seen]) < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_generate(family, seed):
    reference, model, generator = with_attention_and_norms(family, seed)
    inputs = padded_batch(9, 3, generator)
    for beams in (1, 3):
        options = {"max_new_tokens": 9, "do_sample": False, "num_beams": beams, "eos_token_id": None}
        with torch.no_grad():
            expected = reference.generate(**inputs, **options)
            for cache in (None, pool_cache(model.config)):
                assert torch.equal(model.generate(**inputs, **options, past_key_values=cache), expected)


class RowByRow(nn.Linear):
    """A linear layer whose bits do not depend on how many rows it gets."""

    def forward(self, x):
        rows = [functional.linear(row, self.weight, self.bias) for row in x.reshape(-1, x.shape[-1]).split(1)]
        return torch.cat(rows).view(*x.shape[:-1], -1)


def exact_operator(family, seed, layer=0):
    """A loaded operator (layer 0 has a window where the family has windows) and its stock module."""
    stock = attention_of(tiny_model(family, seed), layer).requires_grad_(False)
    for name, child in stock.named_children():
        if isinstance(child, nn.Linear) and name != "kv_b_proj":  # its weight is taken apart
            child.__class__ = RowByRow
        elif "RMSNorm" in type(child).__name__:
            setattr(stock, name, loaded("norm.cpu", child))
    return loaded("attention.cpu", stock), stock


def positions_of(stock, rows, tokens, dtype=torch.float32):
    return embed_positions(stock, torch.zeros(1, dtype=dtype), torch.arange(tokens).expand(rows, -1))


def part_of(positions, start, stop):
    return tuple(one[:, start:stop] for one in positions) if isinstance(positions, tuple) else positions[:, start:stop]


def causal_mask(operator, start, stop, rows=1):
    """[rows, 1, T, S] bool as the stock model makes it."""
    query, key = torch.arange(start, stop)[:, None], torch.arange(stop)[None]
    seen = key <= query
    if operator.window:
        seen &= key > query - operator.window
    return seen.expand(rows, 1, -1, -1)


def run(operator, x, positions, sizes, masks="bool"):
    """The output for x [B, S, H] in steps of `sizes` tokens through a fresh pool."""
    cache, outputs, start = pool_cache(), [], 0
    for size in sizes:
        stop = start + size
        mask = causal_mask(operator, start, stop, len(x))
        if masks == "additive":
            mask = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
        elif masks == "none":
            mask = None
        call = {"position_embeddings": part_of(positions, start, stop), "attention_mask": mask}
        outputs.append(operator(x[:, start:stop], **call, past_key_values=cache)[0])
        start = stop
    return torch.cat(outputs, dim=1)


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "gemma2", "gpt_oss", "deepseek_v2", "deepseek_v3"])
def test_bits_do_not_depend_on_chunks_masks_rows_or_threads(family, seed):
    operator, stock = exact_operator(family, seed)
    tokens = 150
    x, positions = torch.randn(2, tokens, 40), positions_of(stock, 2, tokens)
    one, alone = x[:1], part_rows(positions, 1)
    whole = run(operator, one, alone, [tokens])
    for sizes in ([1] * 3 + [61, 1, 64, 21], [64, 64, 22], [149, 1]):
        assert torch.equal(run(operator, one, alone, sizes), whole)
    assert torch.equal(run(operator, one, alone, [70, 80], "additive"), whole)
    if not operator.window:
        assert torch.equal(run(operator, one, alone, [70, 80], "none"), whole)
    assert torch.equal(run(operator, x, positions, [100, 1, 49])[:1], whole)
    before = threads()
    try:
        for count in (1, 2, 3):
            set_threads(count)
            assert torch.equal(run(operator, one, alone, [128, 22]), whole)
    finally:
        set_threads(before)
    tensors = operator(one, position_embeddings=alone, attention_mask=causal_mask(operator, 0, tokens))[0]
    assert relative_difference(tensors, whole) < 1e-5


def part_rows(positions, rows):
    return tuple(one[:rows] for one in positions) if isinstance(positions, tuple) else positions[:rows]


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "gemma3", "gpt_oss", *LATENT])
def test_lowered(family, seed):
    """What `lower` appends computes the bits of the module, over one sequence and two, window and all."""
    for layer in (0, 1):
        operator, stock = exact_operator(family, seed, layer)
        for rows, sizes in ((1, [90, 1, 1]), (2, [5, 70, 1])):
            positions = positions_of(stock, rows, sum(sizes))
            x = torch.randn(rows, sum(sizes), 40)
            expected, actual, start = run(operator, x, positions, sizes), [], 0
            pool = NativeKVPool()
            sequences = tuple(pool.new_sequence() for _ in range(rows))
            for size in sizes:
                part = part_of(positions, start, start + size)
                builder = EagerBuilder(pool, sequences, size, part)
                made = operator.lower(builder, builder.value(x[:, start : start + size].flatten(0, 1)))
                actual.append(made.numbers.view(rows, size, -1))
                start += size
            assert torch.equal(torch.cat(actual, dim=1), expected)
        names = set(builder.done)
        assert {"rotate", "append", "attend"} <= names and ("heads" in names) == (family in LATENT)
        assert ("norm" in names) == (family in ("qwen3_moe", "gemma3", *LATENT))


def test_what_cannot_be_lowered_says_why(seed):
    for family, change, clause in (
        ("olmoe", {}, "clips"),
        ("llama", {"is_causal": False}, "looks ahead"),
        ("deepseek_v3", {"absorb": False}, "called on all latents"),
    ):
        operator, _ = exact_operator(family, seed)
        for name, value in change.items():
            setattr(operator, name, value)
        builder = EagerBuilder(None, (), 1, None)
        with pytest.raises(UnsupportedError, match=rf"layer\.module: it {clause}|kv_b_proj is {clause}"):
            operator.lower(builder, builder.value(torch.zeros(1, 40)))


@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
def test_masks_that_show_later_tokens_are_followed(family, seed):
    """A prefix that sees itself both ways, as a mask of the user's says, with the pool's cache, too."""
    operator, stock = exact_operator(family, seed)
    x, positions = torch.randn(1, 9, 40), positions_of(stock, 1, 9)
    mask = torch.ones(9, 9, dtype=torch.bool).tril()
    mask[:4, :4] = True
    call = {"position_embeddings": positions, "attention_mask": mask[None, None]}
    expected = stock(x, **call, **{cache_argument(type(stock)): None})[0]
    for cache in (None, DynamicCache(), pool_cache()):
        assert relative_difference(operator(x, **call, past_key_values=cache)[0], expected) < 1e-5


def test_without_a_mask_the_pool_knows_the_positions(seed):
    operator, stock = exact_operator("llama", seed)
    x, positions = torch.randn(1, 9, 40), positions_of(stock, 1, 9)
    assert torch.equal(run(operator, x, positions, [3, 6], "none"), run(operator, x, positions, [9]))
    dynamic = DynamicCache()
    operator(x[:, :3], position_embeddings=part_of(positions, 0, 3), past_key_values=dynamic)
    with pytest.raises(UnsupportedError, match=r"layer\.module: 6 tokens follow earlier ones"):
        operator(x[:, 3:], position_embeddings=part_of(positions, 3, 9), past_key_values=dynamic)


def test_the_pool_is_read_where_it_is_native(seed, monkeypatch):
    """No gathering of all keys on pages; every other cache gives tensors."""
    operator, stock = exact_operator("llama", seed)
    x, positions = torch.randn(1, 4, 40), positions_of(stock, 1, 4)
    seen = []
    for name in ("attend", "attend_pool"):
        function = getattr(native, name)
        monkeypatch.setattr(native, name, lambda *a, name=name, function=function: seen.append(name) or function(*a))
    for cache in (pool_cache(), DynamicCache(), None):
        operator(x, position_embeddings=positions, past_key_values=cache)
    assert seen == ["attend_pool", "attend", "attend"]


@pytest.mark.parametrize("family", LATENT)
def test_expanded_on_demand(family, seed):
    """`absorb: false`, and projections that may not be taken apart."""
    for spoil in ("config", "wrapped"):
        operator, stock = exact_operator(family, seed)
        if spoil == "config":
            operator.absorb = False
        else:
            operator.kv_b_proj = stock.kv_b_proj = Wrapped(stock.kv_b_proj)
        assert operator.absorbed() is None
        x, positions = torch.randn(2, 6, 40), positions_of(stock, 2, 6)
        call = {"position_embeddings": positions, "attention_mask": causal_mask(operator, 0, 6, 2)}
        expected = stock(x, **call, **{cache_argument(type(stock)): None})[0]
        for cache in (None, DynamicCache(), pool_cache()):
            assert relative_difference(operator(x, **call, past_key_values=cache)[0], expected) < 1e-5


def test_the_copies_of_kv_b_proj(seed):
    """They are made at the check after loading, held, counted in the plan, and made again for other weights."""
    operator, stock = exact_operator("deepseek_v3", seed)
    assert operator.held() == ()
    operator.self_check()
    sizes = sum(part.nbytes for part in operator.held())
    assert sizes == stock.kv_b_proj.weight.nbytes
    context = context_for(stock)
    for absorb, wanted in ((None, sizes), (True, sizes), (False, 0)):
        assert CpuAttention.memory(context, CpuAttention.Config(absorb=absorb)).resident_bytes == wanted
    grouped = context_for(attention_of(tiny_model("qwen3_moe", seed)))
    assert CpuAttention.memory(grouped, CpuAttention.Config()).resident_bytes == 0
    held = operator.held()
    assert operator.absorbed() is operator.absorbed() and operator.held() == held
    with torch.no_grad():
        operator.kv_b_proj.weight.mul_(2.0)
    x, positions = torch.randn(1, 5, 40), positions_of(stock, 1, 5)
    for one in (operator, copy.deepcopy(operator), pickle.loads(pickle.dumps(operator))):
        actual = one(x, position_embeddings=positions)[0]
        expected = stock(x, position_embeddings=positions, attention_mask=causal_mask(one, 0, 5))[0]
        assert relative_difference(actual, expected) < 1e-5
    assert operator.held() != held


@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
def test_calls_that_cannot_be_native_compute_as_attention_torch(family, seed):
    stock = attention_of(tiny_model(family, seed)).requires_grad_(False)
    operator, twin = (loaded(name, copy.deepcopy(stock)) for name in ("attention.cpu", "attention.torch"))
    positions = positions_of(stock, 1, 5)
    x = torch.randn(1, 5, 40, requires_grad=True)
    operator(x, position_embeddings=positions)[0].sum().backward()
    assert x.grad is not None
    operator.o_proj.requires_grad_()  # a projection that is trained
    operator(x.detach(), position_embeddings=positions)[0].sum().backward()
    assert operator.o_proj.weight.grad is not None
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        answers = [one(x, position_embeddings=positions)[0] for one in (operator, twin)]
    assert torch.equal(*answers)
    half, positions = x.detach().bfloat16(), positions_of(stock, 1, 5, torch.bfloat16)
    answers = [one.bfloat16()(half, position_embeddings=positions)[0] for one in (operator, twin)]
    assert answers[0].dtype == torch.bfloat16 and torch.equal(*answers)


def test_another_implementation_runs_the_stock_forward(seed):
    reference, model, generator = with_attention_and_norms("llama", seed)
    ids, seen = random_ids(1, 7, generator), []

    def counted(module, *args, **kwargs):
        seen.append(type(module))
        return sdpa_attention_forward(module, *args, **kwargs)

    AttentionInterface.register("counted", counted)
    AttentionMaskInterface.register("counted", sdpa_mask)
    for one in (reference, model):
        one.set_attn_implementation("counted")
    assert relative_difference(logits(model, input_ids=ids), logits(reference, input_ids=ids)) < 1e-5
    assert seen == [type(attention_of(reference))] * 4
    model.set_attn_implementation("eager")
    with pytest.raises(UnsupportedError, match="output_attentions"):
        logits(model, input_ids=ids, output_attentions=True)


def test_refuses(monkeypatch, seed):
    stock = attention_of(tiny_model("llama", seed))
    config = CpuAttention.Config()
    for change, clause in (({"dtype": torch.bfloat16}, "bfloat16"), ({"device": torch.device("meta")}, "on meta")):
        assert clause in CpuAttention.supports(dataclasses.replace(context_for(stock), **change), config)
    assert "no config" in refusal("attention.cpu", nn.MultiheadAttention(8, 2))
    monkeypatch.setattr(float32, "native_reason", lambda: "not built")
    assert "native CPU library is not built" in refusal("attention.cpu", stock)


def test_a_rotation_of_another_kind_is_refused(seed):
    class Twisted:
        """Turns backwards and stretches."""

        def __call__(self, query, key, embeddings):
            return query * 1.5, key.flip(-1)

    stock = attention_of(tiny_model("llama", seed))
    assert "turns heads in a way" in find_turning(stock, Twisted(), 10)


@pytest.mark.parametrize(
    ("family", "windows"),
    [
        ("mistral", [9, 9, 9]),
        ("gemma3_text", [9, 0, 9]),
        ("gpt_oss", [9, 0, 9]),
        ("qwen2", [0, 0, 0]),
        ("llama", [0] * 3),
    ],
)
def test_windows_are_those_of_the_stock_forward(family, windows):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(CONFIGS[family]())
    assert [native.window_of(layer.self_attn) for layer in model.model.layers] == windows


def test_self_check_finds_wrong_numbers(seed, monkeypatch):
    monkeypatch.setattr(torch_attention, "_agreed", set())
    for family in ("llama", "deepseek_v2", "gpt_oss"):
        operator = loaded("attention.cpu", attention_of(tiny_model(family, seed)))
        operator.self_check()
        operator.spec = dataclasses.replace(operator.spec, scaling=operator.spec.scaling * 1.2)
        with pytest.raises(UnsupportedError, match=r"layer\.module: attention\.cpu and \w+Attention"):
            operator.self_check()
