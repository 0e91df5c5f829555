import copy

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache

from ktitan.context import PagedCache, Phase
from ktitan.engine.cache import KtitanCache
from ktitan.engine.kv_torch import TorchKVPool
from ktitan.errors import BudgetError, UnsupportedError

# 5.24 renamed the argument to `cache`; the old name is the one that works everywhere.
pytestmark = pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")

# Weights large enough that a wrong key or value changes the logits visibly.
BASE = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "initializer_range": 0.3, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
MLA = {
    "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
    "v_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 2,
    "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip
FAMILIES = {
    "llama": ("LlamaConfig", {}),
    "deepseek_v3": ("DeepseekV3Config", MLA),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
    "mistral": ("MistralConfig", {"sliding_window": 8, "head_dim": 8}),
    "qwen2": ("Qwen2Config", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}),
    "gemma3": (
        "Gemma3TextConfig",
        {"sliding_window": 8, "head_dim": 8, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "llama4": (
        "Llama4TextConfig",
        {"attention_chunk_size": 8, "head_dim": 8, "intermediate_size_mlp": 48, "num_local_experts": 2,
         "num_experts_per_tok": 1, "layer_types": ["chunked_attention", "full_attention"]},
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=FAMILIES)
def model(request):
    return build(request.param)


@pytest.fixture(scope="module")
def llama():
    return build("llama")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Models this small lose more to a second thread than they gain."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def build(family):
    name, extra = FAMILIES[family]
    config = getattr(transformers, name)(**(BASE | extra))
    return AutoModelForCausalLM.from_config(config).eval()


def random_ids(batch, tokens):
    return torch.randint(3, BASE["vocab_size"], (batch, tokens))


def random_states(batch, tokens, heads=2, dim=8):
    return torch.randn(batch, heads, tokens, dim), torch.randn(batch, heads, tokens, dim)


def pages_in_use(cache):
    pool = cache.pool
    page_bytes = sum(64 * pool.spec(layer).token_bytes for layer in pool.layers())
    assert pool.used_bytes % page_bytes == 0
    return pool.used_bytes // page_bytes


def pages_expected(cache):
    return len({page for sequence in cache.sequences for page in cache.pool.table(sequence)})


def steps(model, cache, ids, lengths):
    """The logits of `ids` [B, T] fed in pieces of `lengths` tokens."""
    pieces = ids.split(lengths, dim=1)
    return torch.cat([model(piece, past_key_values=cache).logits for piece in pieces], dim=1)


def both(model, run):
    """What `run` gives with a stock cache and with ours, and our cache."""
    results, cache = [], None
    for cache in (DynamicCache(config=model.config), KtitanCache(model.config)):
        torch.manual_seed(5)
        results.append(run(cache))
    return *results, cache


def test_logits_are_those_of_the_stock_cache(model):
    ids = random_ids(2, 80)
    lengths = [5, 1, 6, 1, 30, 17, 1, 3, 1, 15]  # windows of 8 and pages of 64 begin and end inside and between
    stock, ours, cache = both(model, lambda cache: steps(model, cache, ids, lengths))
    torch.testing.assert_close(ours, stock, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours, model(ids, use_cache=False).logits, rtol=1e-3, atol=1e-4)
    assert cache.get_seq_length() == 80 and cache.batch_size == 2
    assert pages_in_use(cache) == pages_expected(cache) == 4


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_logits_with_eager_attention(family):
    model = build(family)
    model.set_attn_implementation("eager")
    ids = random_ids(2, 80)
    stock, ours, _ = both(model, lambda cache: steps(model, cache, ids, [5, 1, 30, 28, 1, 15]))
    torch.testing.assert_close(ours, stock, rtol=1e-4, atol=1e-5)


GENERATE = {
    "greedy": {},
    "sample": {"do_sample": True, "num_return_sequences": 2},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "beams, sampled": {"num_beams": 2, "do_sample": True},
}


@pytest.mark.parametrize("mode", GENERATE)
def test_generate_gives_the_tokens_of_the_stock_cache(model, mode):
    ids = random_ids(2, 55)
    mask = torch.ones_like(ids)
    ids[1, :9], mask[1, :9] = 0, 0
    stock, ours, cache = both(
        model,
        lambda cache: model.generate(
            ids, attention_mask=mask, past_key_values=cache, max_new_tokens=16, **GENERATE[mode]
        ),
    )
    assert torch.equal(ours, stock)
    assert cache.get_seq_length() == 70
    assert pages_in_use(cache) == pages_expected(cache)
    cache.release()
    assert cache.pool.used_bytes == 0 and cache.get_seq_length() == 0


def test_prompt_lookup_gives_the_tokens_of_the_stock_cache(model):
    ids = random_ids(1, 12).repeat(1, 5)
    arguments = {"max_new_tokens": 24, "prompt_lookup_num_tokens": 4, "do_sample": False}
    stock, ours, cache = both(model, lambda cache: model.generate(ids, past_key_values=cache, **arguments))
    assert torch.equal(ours, stock)
    assert torch.equal(ours, model.generate(ids, max_new_tokens=24, do_sample=False))
    assert pages_in_use(cache) == pages_expected(cache) == 2


def test_assistant_model(llama):
    ids, assistant = random_ids(1, 60), copy.deepcopy(llama)
    assistant.lm_head.weight.add_(0.1 * torch.randn_like(assistant.lm_head.weight))  # is wrong now and then
    expected = llama.generate(ids, max_new_tokens=20, do_sample=False)
    cache = KtitanCache(llama.config)
    ours = llama.generate(ids, past_key_values=cache, assistant_model=assistant, max_new_tokens=20, do_sample=False)
    assert torch.equal(ours, expected)


def test_chunked_prefill_and_second_turn(model):
    # Against the stock cache under the same calls: an answer that holds the pad token is masked in the second turn.
    ids, more = random_ids(1, 50), random_ids(1, 20)

    def talk(cache):
        how = {"past_key_values": cache, "max_new_tokens": 10, "do_sample": False}
        first = model.generate(ids, prefill_chunk_size=16, **how)
        return first, model.generate(torch.cat([first, more], dim=1), **how)

    cache = KtitanCache(model.config)
    for ours, theirs in zip(talk(cache), talk(DynamicCache(config=model.config)), strict=True):
        assert torch.equal(ours, theirs)
    assert cache.get_seq_length() == 89


@pytest.mark.parametrize("prompt", [7, 8, 9, 30, 70])
def test_crop_then_continue_is_a_cold_run(model, prompt):
    ids, other = random_ids(2, prompt), random_ids(2, 5)
    kept = prompt - 3
    cache = KtitanCache(model.config)
    steps(model, cache, ids, [prompt])
    cache.crop(-3)
    cold = steps(model, KtitanCache(model.config), torch.cat([ids[:, :kept], other], dim=1), [kept, 5])
    torch.testing.assert_close(steps(model, cache, other, [5]), cold[:, kept:], rtol=1e-4, atol=1e-5)
    assert cache.get_seq_length() == kept + 5


def test_crop_forms():
    cache = KtitanCache()
    cache.update(*(states := random_states(1, 70)), 0)
    cache.crop(0)
    cache.crop(100)
    assert cache.get_seq_length() == 70
    cache.crop(66)
    assert cache.get_seq_length() == 66 and pages_in_use(cache) == 2
    cache.crop(-2)
    assert cache.get_seq_length() == 64 and pages_in_use(cache) == 1
    assert torch.equal(cache.layers[0].keys, states[0][:, :, :64])
    assert torch.equal(cache.layers[0].values, states[1][:, :, :64])
    cache.crop(-100)
    assert cache.get_seq_length() == 0 and cache.pool.used_bytes == 0


def test_rows_are_repeated_selected_and_reordered(llama):
    ids = random_ids(2, 70)
    stock, ours = DynamicCache(config=llama.config), KtitanCache(llama.config)
    operations = [
        lambda cache: cache.batch_repeat_interleave(3),
        lambda cache: cache.batch_select_indices(torch.tensor([5, 0, 3, 1])),
        lambda cache: cache.reorder_cache(torch.tensor([2, 2, 0, 1])),
        lambda cache: cache.batch_select_indices(torch.tensor([True, False, True, True])),
        lambda cache: cache.batch_select_indices(torch.tensor([-1])),
    ]
    for cache in (stock, ours):
        llama(ids, past_key_values=cache)
    for operation in operations:
        for cache in (stock, ours):
            operation(cache)
        piece = random_ids(len(ours.sequences), 2)
        expected, got = (llama(piece, past_key_values=cache).logits for cache in (stock, ours))
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
        for layer, reference in zip(ours.layers, stock.layers, strict=True):
            assert torch.equal(layer.keys, reference.keys) and torch.equal(layer.values, reference.values)
        assert pages_in_use(ours) == pages_expected(ours)
    assert pages_in_use(ours) == 2


def test_beams_share_the_prompt():
    cache = KtitanCache()
    for layer in (0, 1):
        cache.update(*random_states(1, 64 * 5), layer)
    cache.batch_repeat_interleave(4)
    assert pages_in_use(cache) == 5
    for layer in (0, 1):
        cache.update(*random_states(4, 1), layer)
    assert pages_in_use(cache) == 9
    cache.reorder_cache(torch.tensor([1, 1, 1, 1]))
    assert pages_in_use(cache) == 6


def test_reset_allows_another_batch(llama):
    cache = KtitanCache(llama.config)
    llama(random_ids(3, 20), past_key_values=cache)
    with pytest.raises(UnsupportedError, match="2 rows does not fit a cache of 3"):
        llama(random_ids(2, 1), past_key_values=cache)
    cache.reset()
    assert cache.pool.used_bytes == 0 and cache.batch_size == -1 and not cache.is_initialized
    ids = random_ids(2, 20)
    torch.testing.assert_close(llama(ids, past_key_values=cache).logits, llama(ids).logits, rtol=1e-4, atol=1e-5)
    assert cache.batch_size == 2 and cache.is_initialized


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_deep_copy_is_a_prefix_of_its_own(llama, is_shared):
    prefix, tails = random_ids(1, 50), [random_ids(1, 30), random_ids(1, 30)]
    pool = TorchKVPool() if is_shared else None
    cache = KtitanCache(llama.config, pool=pool)
    llama(prefix, past_key_values=cache)
    clones = [copy.deepcopy(cache) for _ in tails]
    assert all((clone.pool is cache.pool) == is_shared for clone in clones)
    assert pages_in_use(cache) == 1
    for clone, tail in zip([*clones, cache], [*tails, tails[0]], strict=True):
        expected = llama(torch.cat([prefix, tail], dim=1)).logits[:, 50:]
        torch.testing.assert_close(steps(llama, clone, tail, [1, 29]), expected, rtol=1e-3, atol=1e-4)
    if is_shared:
        assert pages_in_use(cache) == 6
        for one in (*clones, cache):
            one.release()
        assert pool.used_bytes == 0


def test_a_shared_pool_serves_two_caches(llama):
    pool = TorchKVPool()
    caches = [KtitanCache(llama.config, pool=pool) for _ in range(2)]
    ids = [random_ids(1, 70), random_ids(2, 70)]
    logits = [[], []]
    for piece in range(0, 70, 35):
        for which, cache in enumerate(caches):
            logits[which].append(llama(ids[which][:, piece : piece + 35], past_key_values=cache).logits)
    for which in range(2):
        torch.testing.assert_close(torch.cat(logits[which], 1), llama(ids[which]).logits, rtol=1e-3, atol=1e-4)
    caches[0].release()
    assert pages_in_use(caches[1]) == 4


def test_a_refused_step_leaves_the_cache_as_it_was(llama):
    ids = random_ids(1, 200)
    measured = KtitanCache(llama.config)
    llama(ids[:, :64], past_key_values=measured)
    cache = KtitanCache(llama.config, budget_bytes=measured.pool.used_bytes * 2)
    llama(ids[:, :100], past_key_values=cache)
    with pytest.raises(BudgetError, match="raise the KV budget"):
        llama(ids[:, 100:140], past_key_values=cache)
    assert cache.get_seq_length(0) == cache.get_seq_length(1) == 100
    torch.testing.assert_close(
        llama(ids[:, 100:128], past_key_values=cache).logits, llama(ids[:, :128]).logits[:, 100:], rtol=1e-3, atol=1e-4
    )


def test_a_refused_first_step_is_undone_in_the_layers_that_took_it(llama):
    pool = TorchKVPool(budget_bytes=3 * 64 * 2 * 2 * 8 * 4)  # three pages of one of the two layers
    cache = KtitanCache(llama.config, pool=pool)
    with pytest.raises(BudgetError):
        llama(random_ids(2, 20), past_key_values=cache)
    assert pool.used_bytes == 0 and cache.get_seq_length() == 0 and cache.batch_size == -1
    ids = random_ids(1, 64)
    torch.testing.assert_close(llama(ids, past_key_values=cache).logits, llama(ids).logits, rtol=1e-4, atol=1e-5)


def test_what_a_mask_and_generate_ask():
    config = transformers.Gemma3TextConfig(**(BASE | FAMILIES["gemma3"][1]))
    cache = KtitanCache(config)
    assert len(cache) == 2 and cache.is_sliding == [True, False] and cache.is_linear == [False, False]
    assert not cache.is_compileable and cache.is_croppable and cache.batch_size == -1
    assert cache.get_mask_sizes(5, 0) == (5, 0) and cache.layers[0].keys is None
    for layer in (0, 1):
        cache.update(*random_states(2, 30), layer)
    assert [cache.get_mask_sizes(5, layer) for layer in (0, 1, 9)] == [(35, 0), (35, 0), (5, 0)]
    assert cache.get_max_length() == cache.get_max_length(0) == -1
    assert cache.get_seq_length(1) == 30 and cache.get_seq_length(9) == 0
    assert KtitanCache().is_sliding == [] and KtitanCache().get_max_length() == -1
    assert KtitanCache(transformers.MistralConfig(**(BASE | FAMILIES["mistral"][1]))).is_sliding == [True, True]
    assert "tokens=30" in repr(cache)


def test_a_single_layer_cannot_move_its_rows():
    cache = KtitanCache()
    cache.update(*random_states(1, 3), 0)
    layer = cache.layers[0]
    for call in (layer.reset, layer.offload, layer.prefetch, lambda: layer.reorder_cache(torch.tensor([0]))):
        with pytest.raises(UnsupportedError, match="share"):
            call()
    assert cache.get_seq_length() == 3


def test_early_initialization_declares_layers(llama):
    cache = KtitanCache(llama.config)
    cache.early_initialization(batch_size=2, num_heads=2, head_dim=8, dtype=torch.float32, device=torch.device("cpu"))
    assert list(cache.pool.layers()) == [0, 1] and cache.batch_size == 2 and cache.get_seq_length() == 0
    llama(random_ids(2, 5), past_key_values=cache)
    assert cache.get_seq_length() == 5


def test_append_is_update_without_the_gather():
    cache = KtitanCache()
    assert isinstance(cache, PagedCache)
    first, second = random_states(2, 70), random_states(2, 3)
    cache.append(*first, 0)
    cache.append(*second, 0)
    keys, values = (torch.cat(parts, dim=2) for parts in zip(first, second, strict=True))
    assert torch.equal(cache.layers[0].keys, keys) and torch.equal(cache.layers[0].values, values)
    for row, sequence in enumerate(cache.sequences):
        pages = list(cache.pool.pages(0, sequence))
        assert [len(k) for k, _ in pages] == [64, 9]
        assert torch.equal(torch.cat([k for k, _ in pages]).transpose(0, 1), keys[row])


def test_step_context_reserves_the_pages_of_the_step():
    cache = KtitanCache()
    context = cache.step_context(63, batch_size=2)
    assert context.phase is Phase.PREFILL and context.tokens == 126
    for layer in (0, 1):
        cache.update(*random_states(2, 63), layer)
    assert context.page_tables == {s: cache.pool.table(s) for s in cache.sequences}
    context = cache.step_context(2)
    assert context.positions.tolist() == [63, 64, 63, 64]
    a, b = cache.sequences
    assert context.sequence_ids.tolist() == [a, a, b, b]
    assert len(context.page_tables[a]) == len(context.page_tables[b]) == 2
    assert cache.step_context(1).phase is Phase.DECODE


@pytest.mark.parametrize("kind", ["linear_attention", "indexed_attention", "hybrid"])
def test_layers_with_other_states_are_refused(kind):
    config = transformers.Gemma3TextConfig(**(BASE | FAMILIES["gemma3"][1]))
    config.layer_types = ["full_attention", kind]
    with pytest.raises(UnsupportedError, match=kind):
        KtitanCache(config)


def test_a_shared_pool_has_its_own_budget():
    with pytest.raises(UnsupportedError, match="budget"):
        KtitanCache(pool=TorchKVPool(), budget_bytes=1)


def test_wrong_states_are_refused():
    cache = KtitanCache()
    with pytest.raises(UnsupportedError, match=r"\[B, heads, T, dim\]"):
        cache.update(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 4, 4), 0)
    with torch.enable_grad(), pytest.raises(UnsupportedError, match="no_grad"):
        cache.update(torch.zeros(1, 2, 3, 4, requires_grad=True), torch.zeros(1, 2, 3, 4), 0)
    assert cache.batch_size == -1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mode", ["greedy", "beams"])
def test_generate_on_a_gpu(llama, mode):
    model, ids = copy.deepcopy(llama).cuda(), random_ids(2, 70).cuda()
    stock, ours, cache = both(
        model,
        lambda cache: model.generate(ids, past_key_values=cache, max_new_tokens=16, do_sample=False, **GENERATE[mode]),
    )
    assert torch.equal(ours, stock)
    assert cache.pool.spec(0).device.type == "cuda" and pages_in_use(cache) == pages_expected(cache)
