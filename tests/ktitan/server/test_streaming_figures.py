"""What the server and the chat say of streamed weights."""

from types import SimpleNamespace

import pytest

import ktitan
from ktitan.local_chat.session import cache_text
from ktitan.server import tiers
from ktitan.server.metrics import Metrics
from ktitan.server.tiers import Tiers

from support.operator_rig import fresh_seed
from support.packed_models import write_packed
from support.streaming_rules import rules


@pytest.fixture
def model(tmp_path):
    write_packed(tmp_path / "m.gguf", "qwen3_moe", "q4_k", fresh_seed())
    return ktitan.load(tmp_path / "m.gguf", rules=rules("streamed"), device="cpu", context=64)


def test_hits_are_of_ram_and_reads_of_the_drive(model, monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(tiers.time, "monotonic", lambda: clock.now)
    queue = type("Queue", (list,), {"limit": 8})()
    shown = Tiers(model[0], SimpleNamespace(running=None, last_stats=None, queue=queue))
    first = shown.report()["tiers"]
    assert (first["ram"]["hits"], first["ram"]["misses"], first["nvme"]["read_bytes_per_second"]) == (0, 0, None)
    list(ktitan.stream(*model, "abab", max_new_tokens=4, greedy=True, ignore_eos=True))
    clock.now += 2
    store = model[0].ktitan.store_stats()
    report = shown.report()["tiers"]
    assert (report["ram"]["hits"], report["ram"]["misses"]) == (store["hits"], store["misses"])
    assert store["misses"] and report["ram"]["cache_bytes"] == store["arena_bytes"]
    assert report["nvme"]["read_bytes_per_second"] == store["io"]["read_bytes"] / 2
    assert report["nvme"]["weights_bytes"] == model[0].ktitan.plan.parts["nvme"]["weights"]
    assert (report["vram"]["hits"], report["nvme"]["hits"]) == (None, None)
    assert shown.column("hits") == {"ram": float(store["hits"])}
    held = model[0].ktitan.stats()["resident_bytes"]["ram"]
    assert report["ram"]["weights_bytes"] + report["ram"]["cache_bytes"] == held


def test_the_chat_says_what_an_answer_read():
    before = {"demands": 10, "hits": 5, "io": {"read_bytes": 100, "busy_ns": 0}}
    after = {"demands": 30, "hits": 20, "io": {"read_bytes": 100 + (3 << 20), "busy_ns": 2 * 10**9}}
    assert cache_text(before, after) == "75 % hits, 3.0 MiB read at 1.5 MiB/s"
    assert cache_text(before, before) == "0 B read"
    assert cache_text(None, None) == ""


def test_counts_of_tiers_are_counters():
    metrics = Metrics()
    metrics.tier_counter("ktitan_tier_hits", "Found.", lambda: {"ram": 3.0})
    text = metrics.text("application/openmetrics-text")[0].decode()
    assert "# TYPE ktitan_tier_hits counter" in text and 'ktitan_tier_hits_total{tier="ram"} 3.0' in text
