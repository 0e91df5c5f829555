"""`model.ktitan.rebudget()` while the model answers."""

import copy
import gc
import pickle
import random
import threading
import time

import pytest
import torch

import ktitan
from ktitan.engine.cache import KtitanCache
from ktitan.engine.generate import generate_tokens, new_cache
from ktitan.engine.room import context_tokens
from ktitan.errors import BudgetError, UnsupportedError
from ktitan.native import native_reason

from support.operator_rig import fresh_seed
from support.packed_models import write_packed
from support.streaming_rules import rules
from support.tiny_models import on_meta, save_tiny

TOKENS, CONTEXT = 24, 512

streams = pytest.mark.skipif(native_reason() is not None, reason=f"native library {native_reason()}")


@pytest.fixture(scope="module", params=["llama", "mixtral", "deepseek_v3"])
def path(request, tmp_path_factory):
    file = tmp_path_factory.mktemp("rebudget") / "m.gguf"
    write_packed(file, request.param, "q4_k", fresh_seed())
    return file


def streamed(path):
    return ktitan.load(path, rules=rules("streamed"), device="cpu", context=CONTEXT)[0]


def prompt(tokens):
    """[1, tokens]"""
    return (torch.arange(tokens) % 60 + 3)[None]


def sizes(handle):
    """RAM in which nothing, half and all of the cache that can be done without is there."""
    full = handle.plan.totals["ram"]
    least = full - handle.plan.cache.all_bytes + handle._store.least_bytes
    return least, (least + full) // 2, full


def decoded(model, change=lambda step: None, tokens=TOKENS):
    """Logits of greedy steps [tokens, V]; `change(step)` before each one."""
    cache, found, ids = new_cache(model), [], prompt(57)
    with torch.inference_mode():
        for step in range(tokens):
            change(step)
            found.append(model(ids, past_key_values=cache).logits[0, -1])
            ids = found[-1].argmax()[None, None]
    return torch.stack(found)


def state(handle):
    return copy.deepcopy((handle.plan.parts, handle.plan.limits, handle.plan.budget, handle.plan.context_tokens)), (
        handle.kv_allowance.limit_bytes,
        handle.store_stats()["arena_bytes"] if handle.store_stats() else None,
    )


@streams
def test_logits_stay_through_budgets_down_and_up_in_mid_answer(path):
    model = streamed(path)
    expected = decoded(model)
    least, half, full = sizes(model.ktitan)

    def change(step):
        wanted = {5: half, 9: least, 12: full, 17: half}.get(step)
        if wanted is not None:
            model.ktitan.rebudget(f"ram={wanted}")
            stats = model.ktitan.stats()
            assert stats["resident_bytes"]["ram"] <= wanted == stats["limits"]["ram"] == stats["planned_bytes"]["ram"]

    assert torch.equal(decoded(model, change), expected)


@streams
def test_stock_generate_goes_on(path):
    model = streamed(path)
    ids = prompt(37)
    given = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    expected = model.generate(ids, **given)
    model.ktitan.rebudget(f"ram={sizes(model.ktitan)[1]}")
    assert torch.equal(model.generate(ids, **given), expected)


@streams
def test_random_budgets_while_another_thread_answers(path):
    model, seed = streamed(path), time.time_ns()
    expected, (least, _, full) = decoded(model), sizes(model.ktitan)
    ended, failed = threading.Event(), []

    def change():
        choose = random.Random(seed)
        try:
            while not ended.is_set():
                model.ktitan.rebudget(f"ram={choose.randint(least, full)}")
                model.ktitan.stats()
        except Exception as error:  # noqa: BLE001 - of another thread, for the assertion below
            failed.append(error)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        found = [decoded(model) for _ in range(2)]
    finally:
        ended.set()
        thread.join()
    assert not failed, seed
    assert all(torch.equal(one, expected) for one in found), seed


@streams
def test_what_does_not_fit_is_refused_with_numbers_and_nothing_changes(path):
    model = streamed(path)
    expected, handle = decoded(model), model.ktitan
    cache = new_cache(model)
    with torch.inference_mode():
        model(prompt(200), past_key_values=cache)
    before, parts = state(handle), handle.plan.parts["ram"]
    too_little = parts["weights"] + parts["workspace"] + handle._store.least_bytes + cache.pool.held_bytes - 1
    with pytest.raises(BudgetError) as caught:
        handle.rebudget(f"ram={too_little}")
    for word in ("ram: needs at least", "weights", "workspace", "kv", "cache", "the budget allows"):
        assert word in str(caught.value)
    for wrong in ("ram=much", "ram=1B,ram=2B", "sram=1GiB"):
        with pytest.raises(BudgetError):
            handle.rebudget(wrong)
    assert state(handle) == before
    assert torch.equal(decoded(model), expected)


@streams
def test_without_memory_nothing_changes(path, monkeypatch):
    model = streamed(path)
    least, _, full = sizes(model.ktitan)
    model.ktitan.rebudget(f"ram={least}")
    before = state(model.ktitan)
    monkeypatch.setattr(
        type(model.ktitan._store._native), "resize", lambda *_: (_ for _ in ()).throw(BudgetError("no"))
    )
    with pytest.raises(BudgetError, match="no"):
        model.ktitan.rebudget(f"ram={full}")
    assert state(model.ktitan) == before


@streams
def test_the_kv_cache_shrinks_when_the_least_cache_is_reached_and_grows_again(path):
    model = streamed(path)
    handle = model.ktitan
    least, _, full = sizes(handle)
    kv = handle.plan.parts["ram"]["kv"]
    pages, page = CONTEXT // 64, kv * 64 // CONTEXT
    cache = new_cache(model)
    with torch.inference_mode():
        model(prompt(300), past_key_values=cache)
        cache.crop(100)
        assert cache.pool.allocated_bytes > cache.pool.held_bytes == 2 * page
        handle.rebudget(f"ram={least - (pages - 2) * page}")
        assert handle.plan.parts["ram"]["kv"] == handle.kv_budget_bytes == cache.pool.budget_bytes == 2 * page
        assert handle.plan.context_tokens == 128 and context_tokens(model, None) == 128
        model(torch.tensor([[5]]), past_key_values=cache)
        assert cache.pool.allocated_bytes == 2 * page  # what was free went back
        model(prompt(27), past_key_values=cache)  # 128
        with pytest.raises(BudgetError):
            model(torch.tensor([[5]]), past_key_values=cache)
        handle.rebudget(f"ram={full}")
        assert handle.plan.parts["ram"]["kv"] == kv and handle.plan.context_tokens == CONTEXT
        model(torch.tensor([[5]]), past_key_values=cache)
    assert cache.get_seq_length() == 129


def test_caches_that_are_gone_hold_nothing(path):
    model = streamed(path) if native_reason() is None else pytest.skip("no native library")
    cache = new_cache(model)
    with torch.inference_mode():
        model(prompt(100), past_key_values=cache)
    twin = copy.deepcopy(cache)
    assert model.ktitan.kv_allowance.held_bytes == 2 * cache.pool.held_bytes > 0
    del cache, twin
    gc.collect()
    assert model.ktitan.kv_allowance.held_bytes == 0


@streams
def test_a_store_that_is_gone_is_told(path):
    model = streamed(path)
    handle = model.ktitan
    full = sizes(handle)[2]
    handle.undo()
    with pytest.raises(UnsupportedError, match="undo"):
        handle.rebudget(f"ram={full}")


class TestWithNothingStreamed:
    """Weights stay; the KV cache has what is left."""

    @pytest.fixture
    def model(self, tmp_path):
        save_tiny("llama", tmp_path)
        return ktitan.optimize_and_load(on_meta(tmp_path), "auto", weights=tmp_path, device="cpu", context=CONTEXT)

    def test_the_kv_budget_follows(self, model):
        parts = dict(model.ktitan.plan.parts["ram"])
        fixed, page = parts["weights"] + parts["workspace"], parts["kv"] * 64 // CONTEXT
        model.ktitan.rebudget(f"ram={fixed + 3 * page + 1}")
        assert model.ktitan.plan.parts["ram"]["kv"] == 3 * page
        assert model.ktitan.kv_budget_bytes == 3 * page + 1 == model.ktitan.kv_allowance.limit_bytes
        assert context_tokens(model, None) == 192
        model.ktitan.rebudget(f"ram={fixed + 3 * parts['kv']}")
        assert model.ktitan.plan.parts["ram"] == parts and model.ktitan.kv_budget_bytes == 3 * parts["kv"]

    def test_below_weights_workspace_and_keys_in_use_is_refused(self, model):
        parts = model.ktitan.plan.parts["ram"]
        fixed, page, before = parts["weights"] + parts["workspace"], parts["kv"] * 64 // CONTEXT, state(model.ktitan)
        cache = new_cache(model)
        with torch.inference_mode():
            model(prompt(87), past_key_values=cache)
        for wanted in (1, fixed, fixed + 2 * page - 1):
            with pytest.raises(BudgetError, match="weights"):
                model.ktitan.rebudget(f"ram={wanted}")
            assert state(model.ktitan) == before
        model.ktitan.rebudget(f"ram={fixed + 2 * page}")
        del cache
        model.ktitan.rebudget(f"ram={fixed + page}")

    def test_a_handle_that_was_pickled_can_do_it(self, model):
        twin = pickle.loads(pickle.dumps(model))
        twin.ktitan.rebudget(f"ram={model.ktitan.plan.totals['ram']}")
        assert twin.ktitan.kv_budget_bytes == model.ktitan.plan.parts["ram"]["kv"]
        assert model.ktitan.kv_allowance is not twin.ktitan.kv_allowance


def test_a_cache_of_numbers_still_has_its_own_budget():
    cache = KtitanCache(budget_bytes=12345)
    assert cache.pool.budget_bytes == 12345 == copy.deepcopy(cache).pool.budget_bytes


@streams
def test_generate_tokens_in_mid_answer(path):
    model = streamed(path)
    ids = prompt(37)
    expected = list(generate_tokens(model, ids, max_new_tokens=12, ignore_eos=True))
    _, half, full = sizes(model.ktitan)
    said = []
    for token in generate_tokens(model, ids, max_new_tokens=12, ignore_eos=True):
        said.append(token)
        model.ktitan.rebudget(f"ram={half if len(said) % 2 else full}")
    assert said == expected
