"""Figures of a model that streams: they add up, agree with the kernel, and can be read while it computes."""

import threading
from itertools import pairwise

import pytest

import ktitan
from ktitan.api import plan_model
from ktitan.bench.drive import drive_bytes
from ktitan.tiers.figures import Figures
from ktitan.tiers.options import POLICIES

from support.operator_rig import fresh_seed
from support.packed_models import write_packed
from support.streaming_rules import budget, rules

PAGE = 4096


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Tokenizer and a mixture of experts with room for a part of its weights."""
    file = tmp_path_factory.mktemp("figures") / "m.gguf"
    write_packed(file, "qwen3_moe", "q4_k", fresh_seed())
    given = {"rules": rules("streamed"), "device": "cpu", "context": 128}
    plan = plan_model(file, **given)
    return ktitan.load(file, budget=budget(plan, 0.4), **given)


def answer(model, tokens):
    return list(ktitan.stream(*model, "abba", max_new_tokens=tokens, greedy=True, ignore_eos=True))


def test_figures_add_up_and_agree_with_the_kernel(model):
    handle = model[0].ktitan
    answer(model, 2)
    before, kernel = handle.store_stats(), drive_bytes()
    answer(model, 24)
    after, kernel = handle.store_stats(), drive_bytes() - kernel
    found = Figures.between(before, after, 1.0)
    assert found.ram_hits + found.misses == found.demands > 0 and found.misses > 0
    assert found.tokens >= 24 and found.read_bytes == pytest.approx(found.read_bytes_per_token * found.tokens)
    assert found.stall_seconds > 0 and found.policy in POLICIES and found.evictions + found.passed > 0
    reads = after["io"]
    waited = (reads["wait_ns"] - before["io"]["wait_ns"]) / 1e9
    assert 0 < waited <= found.stall_seconds  # rows of tables, too
    if reads["direct_files"] < reads["files"] or not kernel:
        pytest.skip("this file system is read through the page cache, or lies on no drive")
    assert abs(kernel - found.read_bytes) <= PAGE * found.reads


def test_stats_have_both_and_of_one_moment(model):
    stats = model[0].ktitan.stats()
    figures, store = stats["figures"], stats["store"]
    assert figures.keys() == set(Figures.__annotations__)
    assert (figures["demands"], figures["read_bytes"]) == (store["demands"], store["io"]["read_bytes"])
    assert figures["stall_seconds"] == store["stall_ns"] / 1e9 < figures["seconds"]
    assert figures["policy"] == POLICIES[store["policy"]]


def test_counters_are_read_while_a_prompt_runs(model):
    handle, looks, done = model[0].ktitan, [], threading.Event()

    def look():
        while not done.wait(0.002):  # a thread that never rests would keep Python from the model
            looks.append(handle.store_stats())
            handle.stats()

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        answer(model, 40)
    finally:
        done.set()
        watcher.join()
    demands = [one["demands"] for one in looks]
    assert demands == sorted(demands) and len({*demands}) > 3  # not one look waited for the answer's end
    for before, after in pairwise(looks):
        found = Figures.between(before, after, 0.01)
        assert found.hit_rate is None or 0 <= found.hit_rate <= 1
        assert min(found.read_bytes, found.stall_seconds, found.overlap_seconds) >= 0


def test_nothing_streamed_has_no_figures(rig, tmp_path):
    folder = rig.save(tmp_path / "m", rig.chain_model({}), rig.byte_tokenizer())
    stats = ktitan.load(folder, device="cpu")[0].ktitan.stats()
    assert (stats["store"], stats["figures"]) == (None, None)
