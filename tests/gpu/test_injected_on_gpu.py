"""Models through rules on a real GPU: hops, phases, a budget fill, and the cache where the layers are."""

import copy

import pytest
import torch

import ktitan
from ktitan.engine.cache import KtitanCache

from support.tiny_models import on_meta, padded_batch, random_ids, save_tiny

pytestmark = pytest.mark.gpu

FAMILIES = ["llama_tied", "mixtral", "deepseek_v2", "deepseek_v3"]
TOLERANCE = 1e-3  # float32 on the GPU sums in another order


def rules(*entries):
    return {"version": 1, "rules": list(entries)}


def rule(device, operator="keep", **match):
    return {"match": match, "replace": {"class": operator, "kwargs": {"device": device}}}


PLACEMENTS = {
    "all on the GPU": [rule("cuda:0", name="model")],
    "experts on the CPU": [
        rule("cpu", "experts.torch", name=r".*\.experts") | {"optional": True},
        rule("cuda:0", name="model"),
    ],
    "last layers on the CPU": [rule("cpu", name=r"model\.layers\.\d+", layers="1-"), rule("cuda:0", name="model")],
    "only the MLP of one layer on the GPU": [
        rule("cuda:0", name=r"model\.layers\.1\.mlp"),
        rule("cpu", name="model"),
        rule("cpu", name="lm_head"),
    ],
    "embedding and head on the CPU": [
        rule("cpu", "embedding.torch", name=r"model\.embed_tokens"),
        rule("cpu", "linear.torch", name="lm_head"),
        rule("cuda:0", name="model"),
    ],
}


@pytest.fixture(scope="module", params=FAMILIES)
def saved(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return folder, save_tiny(request.param, folder)


def on(model, batch):
    return {name: tensor.to(model.device) for name, tensor in batch.items()}


@pytest.mark.parametrize("placement", list(PLACEMENTS))
def test_every_placement_computes_the_same(saved, placement):
    folder, stock = saved
    model = on_meta(folder)
    ktitan.optimize_and_load(model, rules(*PLACEMENTS[placement]), weights=folder, device="cuda:0")
    batch = padded_batch()
    with torch.inference_mode():
        wanted = stock(**batch).logits
        found = model(**on(model, batch)).logits.cpu()
    assert (wanted - found)[batch["attention_mask"].bool()].abs().max() < TOLERANCE
    for cache in (None, KtitanCache(config=model.config)):
        how = {"max_new_tokens": 12, "do_sample": False, "past_key_values": cache}
        tokens = model.generate(**on(model, batch), **how).cpu()
        assert torch.equal(tokens, stock.generate(**batch, max_new_tokens=12, do_sample=False))
    model.ktitan.undo()
    with torch.inference_mode():
        assert torch.equal(model.cpu()(**batch).logits, wanted)


def test_family_rules_on_the_gpu(saved):
    folder, stock = saved
    model = ktitan.optimize_and_load(on_meta(folder), "auto", weights=folder)
    assert model.device == torch.device("cuda:0")
    assert all(row.device == "cuda:0" for row in model.ktitan.plan.rows)
    batch = padded_batch()
    wanted = stock.generate(**batch, max_new_tokens=24, do_sample=False)
    assert torch.equal(model.generate(**on(model, batch), max_new_tokens=24, do_sample=False).cpu(), wanted)


def test_a_cache_layer_lives_where_its_layer_computes(saved):
    folder, _ = saved
    model = on_meta(folder)
    ktitan.optimize_and_load(model, rules(*PLACEMENTS["last layers on the CPU"]), weights=folder, device="cuda:0")
    cache = KtitanCache(config=model.config)
    with torch.inference_mode():
        model(random_ids(1, 9).cuda(), past_key_values=cache, use_cache=True)
    devices = [cache.pool.spec(layer).device.type for layer in cache.pool.layers()]
    assert devices == ["cuda", "cpu", "cpu"]


def test_prefill_on_the_gpu_decode_on_the_cpu(saved):
    folder, stock = saved
    replace = {
        "class": "linear.torch",
        "kwargs": {"device": "cpu"},
        "prefill": {"class": "linear.torch", "kwargs": {"device": "cuda:0"}},
    }
    split = rules({"match": {"name": r".*\.o_proj"}, "replace": replace}, rule("cuda:0", name="model"))
    model = ktitan.optimize_and_load(on_meta(folder), split, weights=folder, device="cuda:0")
    switch = model.model.layers[0].self_attn.o_proj
    assert (switch.decode.weight.device.type, switch.prefill.weight.device.type) == ("cpu", "cuda")
    batch = padded_batch()
    wanted = stock.generate(**batch, max_new_tokens=12, do_sample=False)
    assert torch.equal(model.generate(**on(model, batch), max_new_tokens=12, do_sample=False).cpu(), wanted)


def test_a_budget_that_is_too_small_for_all_moves_experts_to_the_cpu(tmp_path):
    stock = save_tiny("deepseek_v3", tmp_path)
    layer = stock.model.layers[1].mlp.experts
    experts_bytes = sum(p.numel() * p.element_size() for p in layer.parameters())
    whole = ktitan.plan_model(tmp_path, dtype="float32")
    budget = f"vram={whole.totals['vram'] - experts_bytes + 4096}"  # room for what the plan does not count: buffers
    model = ktitan.optimize_and_load(on_meta(tmp_path), "auto", weights=tmp_path, budget=budget)
    plan = model.ktitan.plan
    moved = [row for row in plan.rows if row.operator == "experts.torch" and row.device == "cpu"]
    assert len(moved) == 1 and "1 part moved by budget" in plan.origin
    assert model.ktitan.stats()["resident_bytes"]["vram"] <= plan.limits["vram"]
    batch = padded_batch()
    wanted = stock.generate(**batch, max_new_tokens=12, do_sample=False)
    assert torch.equal(model.generate(**on(model, batch), max_new_tokens=12, do_sample=False).cpu(), wanted)


def test_stream_on_the_gpu(saved):
    folder, stock = saved
    from support.tiny_tokenizer import tiny_tokenizer

    model = ktitan.optimize_and_load(on_meta(folder), "auto", weights=folder)
    tokenizer = tiny_tokenizer()
    text = "".join(ktitan.stream(model, tokenizer, "some text", max_new_tokens=10, greedy=True))
    assert text == "".join(ktitan.stream(stock, tokenizer, "some text", max_new_tokens=10, greedy=True))


def test_a_live_model_on_the_gpu_is_its_own_source(saved):
    _, stock = saved
    model = copy.deepcopy(stock).cuda()
    held = torch.cuda.memory_allocated()
    ktitan.optimize_and_load(model, "auto")
    assert torch.cuda.memory_allocated() < held * 1.1  # nothing is copied
    with torch.inference_mode():
        ids = random_ids(1, 7)
        assert (model(ids.cuda()).logits.cpu() - stock(ids).logits).abs().max() < TOLERANCE
