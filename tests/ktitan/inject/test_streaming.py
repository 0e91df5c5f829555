"""Models whose weights stay on the drive: the bits of those in RAM, and what becomes of the store."""

import copy
import gc
import pickle
import weakref

import pytest
import torch

import ktitan
from ktitan.api import plan_model
from ktitan.errors import IoError, UnsupportedError
from ktitan.tiers.store import TierStore

from support.adapters import random_tensors, sizes_of, write_adapter
from support.operator_rig import fresh_seed
from support.packed_models import write_packed
from support.streaming_rules import budget, rules
from support.tiny_models import on_meta, save_tiny

FAMILIES = ["llama", "llama_tied", "qwen2", "mixtral", "deepseek_v3"]
IDS = torch.arange(3, 40)[None]


def logits(model, ids=IDS):
    with torch.no_grad():
        return model(ids).logits


@pytest.fixture(scope="module", params=FAMILIES)
def path(request, tmp_path_factory):
    file = tmp_path_factory.mktemp("streamed") / "m.gguf"
    write_packed(file, request.param, "q4_k", fresh_seed())
    return file


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    file = tmp_path_factory.mktemp("streamed") / "m.gguf"
    write_packed(file, "llama", "q4_k", fresh_seed())
    return file


def streamed(path, share=None, **options):
    """The model with the least cache, or that share of all."""
    plan = plan_model(path, rules("streamed"), device="cpu", context=64)
    limits = budget(plan, share)
    return ktitan.load(path, rules=rules("streamed"), device="cpu", context=64, budget=limits, **options)[0]


def test_every_cache_gives_the_bits_of_weights_in_ram(path):
    expected = logits(ktitan.load(path, rules=rules("cpu"), device="cpu", context=64)[0])
    for share in (None, 0.25, 1.0):
        model = streamed(path, share)
        assert torch.equal(logits(model), expected)
        assert torch.equal(logits(model), expected)
        store = model.ktitan.stats()["store"]
        assert store["hits"] + store["misses"] == store["demands"] > 0
        if share == 1.0:
            misses = store["misses"]
            assert torch.equal(logits(model), expected) and model.ktitan.store_stats()["misses"] == misses


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_the_trained_model_writes_the_same(tiny_gguf, share):
    plan = plan_model(tiny_gguf, rules("streamed", dense=False), device="cpu", context=128)
    given = {"device": "cpu", "context": 128}
    resident, tokenizer = ktitan.load(tiny_gguf, rules=rules("cpu"), **given)
    model, _ = ktitan.load(tiny_gguf, rules=rules("streamed", dense=False), budget=budget(plan, share), **given)
    said = [
        "".join(ktitan.stream(one, tokenizer, "The matrix is", max_new_tokens=12, greedy=True))
        for one in (resident, model)
    ]
    assert said[0] == said[1]
    stats = model.ktitan.stats()
    assert stats["store"]["demands"] and stats["resident_bytes"]["ram"] <= model.ktitan.plan.limits["ram"]


def test_plain_floats_in_safetensors_stream(tmp_path):
    save_tiny("mixtral", tmp_path / "m", seed=fresh_seed())
    found = {}
    for place in ("cpu", "streamed"):
        model = ktitan.optimize_and_load(on_meta(tmp_path / "m"), rules(place), weights=tmp_path / "m", device="cpu")
        found[place] = logits(model, IDS % 90)
    assert torch.equal(found["cpu"], found["streamed"])


def test_undo_puts_the_stock_modules_back_and_closes_the_store(llama):
    stock = logits(ktitan.load(llama, rules={"version": 1, "rules": []}, device="cpu")[0])
    model = streamed(llama)
    head = model.lm_head
    model.ktitan.undo()
    assert torch.equal(logits(model), stock)
    assert type(model.lm_head) is torch.nn.Linear and not hasattr(model, "ktitan")
    with pytest.raises(UnsupportedError):
        head(torch.zeros(1, 256))


def test_a_copy_shares_the_store_and_outlives_the_model(llama):
    model = streamed(llama)
    expected = logits(model)
    twin = copy.deepcopy(model)
    store = weakref.ref(model.ktitan._store)
    assert twin.ktitan._store is store()
    del model
    gc.collect()
    assert torch.equal(logits(twin), expected)
    del twin
    gc.collect()
    assert store() is None


def test_streamed_weights_are_not_written(llama):
    model = streamed(llama)
    with pytest.raises(UnsupportedError):
        model.state_dict()
    with pytest.raises(UnsupportedError):
        pickle.dumps(model.lm_head)
    with pytest.raises(UnsupportedError, match="packed weights cannot go"):
        model.to("meta")
    assert logits(model.to(torch.bfloat16)).dtype == torch.bfloat16


def test_adapters_work_on_streamed_linears(llama, tmp_path):
    sizes = sizes_of(ktitan.load(llama, rules={"version": 1, "rules": []}, device="cpu")[0], "q_proj", "down_proj")
    lora = write_adapter(tmp_path / "lora", random_tensors(sizes), target_modules=["q_proj", "down_proj"])
    found = [ktitan.load(llama, rules=rules(place), device="cpu", lora=lora)[0] for place in ("cpu", "streamed")]
    assert torch.equal(*map(logits, found))
    row = next(row for row in found[1].ktitan.plan.rows if row.path.endswith("0.self_attn.q_proj"))
    assert (row.tier, row.resident_bytes) == ("nvme", 4 * 4 * (256 + 256))


def test_a_load_that_fails_closes_the_store(llama, monkeypatch):
    closed = []
    monkeypatch.setattr(TierStore, "close", lambda self: closed.append(self))
    monkeypatch.setattr(TierStore, "open", lambda self, limits, stamps: (_ for _ in ()).throw(IoError("x", "y", "z")))
    with pytest.raises(IoError):
        ktitan.load(llama, rules=rules("streamed"), device="cpu")
    assert closed


def test_only_what_is_read_counts_as_progress(llama):
    seen = []
    ktitan.load(llama, rules=rules("streamed"), device="cpu", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] < llama.stat().st_size / 10


def test_the_kv_cache_gets_what_was_planned(llama):
    model = streamed(llama, 1.0)
    assert model.ktitan.kv_budget_bytes == model.ktitan.plan.parts["ram"]["kv"]
    assert ktitan.load(llama, device="cpu")[0].ktitan.stats()["store"] is None
