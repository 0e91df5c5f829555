"""A prompt through a small cache: every expert that a chunk needs is read at most once, whatever its length."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
import torch

from ktitan.api import generate_tokens, load, plan_model
from ktitan.native import native_reason
from ktitan.tiers.record import PAGE_BYTES

from support.streaming import cache_of, load_resident, logits, rules, save_mixture

pytestmark = pytest.mark.skipif(native_reason() is not None, reason=f"native library {native_reason()}")


RULES = rules("cpu")
RULES["rules"][2]["replace"]["class"] = "experts.streamed"


def load_streamed(path, **options):
    """The model with streamed experts alone, and a store with room for a quarter of them."""
    with cache_of(0.25) as opened:
        model, _ = load(path, rules=RULES, device="cpu", context=1024, **options)
    return model, opened[0].store


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    return save_mixture(tmp_path_factory.mktemp("mixture"), layers=2)


@pytest.fixture
def ids():
    return torch.randint(3, 130, (1, 1000), generator=torch.Generator().manual_seed(time.time_ns()))


def kernel_bytes():
    with open("/proc/self/io") as counters:
        return int(next(line.split()[1] for line in counters if line.startswith("read_bytes")))


def demanded(model):
    """Distinct experts of each call for experts, in order; filled while the model runs."""
    calls = []
    for module in model.modules():
        if type(module).__name__ == "StreamedExperts":
            module.register_forward_pre_hook(lambda _, args: calls.append(len(args[1].unique())))
    return calls


def prompt(model, ids, chunk):
    return list(generate_tokens(model, ids, max_new_tokens=3, ignore_eos=True, chunk_tokens=chunk))


@pytest.mark.parametrize("policy", ["lru", "lfu", "admitting", "sequence-lfu"])
@pytest.mark.parametrize("chunk", [300, 512, 1000])
def test_an_expert_is_read_at_most_once_a_chunk(mixture, ids, chunk, policy):
    model, store = load_streamed(mixture, cache=f"policy={policy},prefetch=off")
    store._native.drop()
    calls = demanded(model)
    before, bytes_before = store.stats(), kernel_bytes()
    prompt(model, ids[:, :999], chunk)
    after = store.stats()
    misses = after["misses"] - before["misses"]
    assert after["demands"] - before["demands"] == sum(calls)
    reads = after["io"]["wanted_bytes"] - before["io"]["wanted_bytes"]
    sizes = [sum(extent.span.nbytes for extent in record.extents) for record in store._records]
    assert misses * min(sizes) <= reads <= misses * max(sizes)
    if after["io"]["direct_files"]:
        widened = after["io"]["read_bytes"] - before["io"]["read_bytes"]
        assert widened <= misses * (max(sizes) + 4 * PAGE_BYTES)
        assert abs(kernel_bytes() - bytes_before - widened) <= 1 << 20  # the program's own files


@pytest.mark.parametrize("tokens", [1024, 2048])
def test_a_long_chunk_is_one_pass(mixture, tokens):
    with cache_of(0.25) as opened:
        model, _ = load(mixture, rules=RULES, device="cpu", context=tokens, cache="policy=lru,prefetch=off")
    store = opened[0].store
    assert model.ktitan.plan.chunk_tokens == tokens
    ids = torch.randint(3, 130, (1, tokens), generator=torch.Generator().manual_seed(time.time_ns()))
    calls, bytes_before = demanded(model), kernel_bytes()
    logits(model, ids)
    counts = store.stats()
    assert counts["demands"] == counts["misses"] == sum(calls) <= len(store._records)
    if counts["io"]["direct_files"]:
        assert abs(kernel_bytes() - bytes_before - counts["io"]["read_bytes"]) <= 1 << 20


def test_what_is_read_ahead_is_read_once_too(mixture, ids):
    model, store = load_streamed(mixture, cache="policy=lfu,scope=layer,prefetch=on")
    prompt(model, ids[:, :300], 300)
    calls = demanded(model)
    before, bytes_before = store.stats(), kernel_bytes()
    model(ids[:, :900], use_cache=False)
    after = store.stats()
    counts = {name: after[name] - before[name] for name in ("demands", "misses", "guesses", "guesses_used")}
    assert counts["demands"] == sum(calls) and 0 < counts["guesses_used"] <= counts["guesses"]
    sizes = [sum(extent.span.nbytes for extent in record.extents) for record in store._records]
    read = counts["misses"] + counts["guesses"]
    reads = after["io"]["wanted_bytes"] - before["io"]["wanted_bytes"]
    assert read * min(sizes) <= reads <= read * max(sizes)
    if after["io"]["direct_files"]:
        assert abs(kernel_bytes() - bytes_before - after["io"]["read_bytes"] + before["io"]["read_bytes"]) <= 1 << 20


def test_no_bit_depends_on_the_chunk(mixture, ids):
    wanted = logits(load_resident(mixture), ids[:, :700])
    model, _ = load_streamed(mixture)
    assert torch.equal(logits(model, ids[:, :700]), wanted)
    assert len({tuple(prompt(model, ids, chunk)) for chunk in (100, 512, 1000)}) == 1


def test_the_chunk_grows_with_the_budget(mixture):
    sizes = []
    for budget in ("80MiB", "600MiB", "2GiB", "8GiB"):
        plan = plan_model(
            mixture,
            RULES,
            budget=f"ram={budget}",
            device="cpu",
            context=1024,
        )
        sizes.append((plan.chunk_tokens, plan.parts["ram"]["workspace"]))
    assert all(one <= other for one, other in pairwise(sizes))
    assert sizes[0][0] == 512 and sizes[-1][0] == 1024  # no longer than the context
