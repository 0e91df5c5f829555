"""A step that fails leaves the cache as it was, and the program usable."""

import os

import pytest
import torch

from ktitan.engine.cache import KtitanCache
from ktitan.engine.kv_native import NativeKVPool
from ktitan.errors import BudgetError, IoError, UnsupportedError

from support.operator_rig import fresh_seed, tiny_model
from support.packed_models import write_packed
from support.programs import STREAMED, load, module_logits, native_cache, on_cpu, program_of, random_ids
from support.streaming import cache_of


class Interrupted(Exception):
    """What a module raises in the middle of a step."""


@pytest.fixture(params=[0, 66])
def begun(request):
    """A program, its model, and a cache that holds some tokens (or none), with the ids."""
    seed = fresh_seed()
    model = on_cpu(tiny_model("llama", seed))
    failing = {"on": False}

    def hook(module, args):
        if failing["on"]:
            raise Interrupted

    model.model.layers[1].mlp.register_forward_pre_hook(hook)
    program, cache, ids = program_of(model), native_cache(model), random_ids(model, 90, seed)
    held = request.param
    if held:
        program.run(ids[:held], cache)
    return program, model, cache, ids, held, failing


def test_a_failure_in_the_middle(begun):
    program, model, cache, ids, held, failing = begun
    failing["on"] = True
    with pytest.raises(Interrupted):
        program.run(ids[held : held + 9], cache)
    assert cache.get_seq_length() == held
    assert all(cache.layers[layer].get_seq_length() == held for layer in range(len(cache.layers)))
    failing["on"] = False
    assert torch.equal(program.run(ids[held:], cache), _whole(program, ids, held, native_cache(model)))


def _whole(program, ids, held, cache):
    if held:
        program.run(ids[:held], cache)
    return program.run(ids[held:], cache)


@pytest.mark.parametrize("ids", [[5, 10**6], [-1]])
def test_ids_that_are_none(begun, ids):
    program, model, cache, _, held, _ = begun
    with pytest.raises(UnsupportedError, match="row") as found:
        program.run(torch.tensor(ids), cache)
    assert cache.get_seq_length() == held
    with pytest.raises(UnsupportedError, match="row") as same:
        module_logits(model, torch.tensor(ids), native_cache(model))
    assert str(found.value) == str(same.value)


@pytest.mark.parametrize(
    "ids",
    [
        torch.empty(0, dtype=torch.int64),
        torch.ones(2, 2, dtype=torch.int64),
        torch.ones(2),
        torch.ones(2, dtype=torch.int32),
    ],
)
def test_ids_of_another_kind(begun, ids):
    with pytest.raises(UnsupportedError, match="ids"):
        begun[0].run(ids, begun[2])


def test_a_full_pool(begun):
    program, model, _, ids, _, _ = begun
    small = KtitanCache(config=model.config, pool=NativeKVPool(budget_bytes=program_pages(model, 1)))
    program.run(ids[:60], small)
    with pytest.raises(BudgetError):
        program.run(ids[60:70], small)
    assert small.get_seq_length() == 60
    program.run(ids[60:64], small)


def program_pages(model, pages):
    """Bytes of so many pages of a tiny llama."""
    config = model.config
    return pages * 64 * 2 * 4 * config.num_key_value_heads * config.head_dim * config.num_hidden_layers


def test_other_caches(begun):
    program, model, *_ = begun
    with pytest.raises(UnsupportedError, match="native"):
        program.run(torch.tensor([5]), KtitanCache(config=model.config))
    batch = native_cache(model)
    module_logits_of_rows(model, batch)
    with pytest.raises(UnsupportedError, match="rows"):
        program.run(torch.tensor([5]), batch)


def module_logits_of_rows(model, cache):
    with torch.inference_mode():
        model(torch.full((2, 3), 7), past_key_values=cache)


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_a_drive_that_fails(family, tmp_path):
    seed = fresh_seed()
    path = tmp_path / "model.gguf"
    write_packed(path, family, "q4_k", seed % 1000)
    with cache_of(0.6):
        model = load(path, STREAMED)
    program, cache, ids = program_of(model), native_cache(model), random_ids(model, 90, seed)
    program.run(ids[:66], cache)
    stat, stored = path.stat(), path.read_bytes()
    os.truncate(path, 4096)
    try:
        with pytest.raises(IoError) as found:
            program.run(ids[66:], cache)
        assert str(path) in str(found.value)
        assert cache.get_seq_length() == 66
    finally:
        path.write_bytes(stored)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert torch.equal(program.run(ids[66:], cache), _whole(program, ids, 66, native_cache(model)))


def test_a_closed_store(tmp_path):
    path = tmp_path / "model.gguf"
    write_packed(path, "llama", "q4_k", 3)
    with cache_of(0.6):
        model = load(path, STREAMED)
    program, cache, ids = program_of(model), native_cache(model), random_ids(model, 9, 3)
    program.run(ids, cache)
    model.ktitan.undo()
    with pytest.raises(UnsupportedError, match="store"):
        program.run(ids, cache)
    assert cache.get_seq_length() == 9
