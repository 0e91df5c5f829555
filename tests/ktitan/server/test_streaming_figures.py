"""What the server and the chat say of streamed weights."""

import re
from types import SimpleNamespace

import pytest
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics

import ktitan
from ktitan.local_chat.streaming import short_text
from ktitan.native.io_structs import IoCounters
from ktitan.native.store import _Counters
from ktitan.server import streaming
from ktitan.server.metrics import Metrics
from ktitan.server.stream_metrics import StreamMetrics
from ktitan.server.tiers import Tiers
from ktitan.tiers.figures import Figures
from ktitan.tiers.options import POLICIES

from support.operator_rig import fresh_seed
from support.packed_models import write_packed
from support.serving import serving, wait_for
from support.streaming_rules import rules


@pytest.fixture
def model(tmp_path):
    write_packed(tmp_path / "m.gguf", "qwen3_moe", "q4_k", fresh_seed())
    return ktitan.load(tmp_path / "m.gguf", rules=rules("streamed"), device="cpu", context=64)


def test_hits_are_of_ram_and_reads_of_the_drive(model, monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(streaming.time, "monotonic", lambda: clock.now)
    queue = type("Queue", (list,), {"limit": 8})()
    shown = Tiers(model[0], SimpleNamespace(running=None, last_stats=None, queue=queue, prompt_cache=None))
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
    assert short_text(Figures.between(before, after, 3)) == "75 % hits, 3.0 MiB read at 1.5 MiB/s"
    assert short_text(Figures.between(before, before, 3)) == "0 B read"
    assert short_text(None) == ""


def text_of(metrics, kind="application/openmetrics-text"):
    return metrics.text(kind)[0].decode()


@pytest.fixture
def streamed():
    """Metrics, and the counters that they read."""
    counters = dict.fromkeys((name for name, _ in _Counters._fields_), 0)
    counters["io"] = dict.fromkeys((name for name, _ in IoCounters._fields_), 0)
    metrics = Metrics()
    metrics.add(StreamMetrics(lambda: counters))
    return metrics, counters


def test_every_metric_can_be_read_and_has_a_text(streamed):
    metrics, counters = streamed
    counters.update(hits=3, policy=POLICIES.index("admitting"), stall_ns=1_500_000_000, guess_gain_ns=-2_000_000)
    counters["io"].update(read_bytes=8192, busy_ns=500_000_000)
    for parse, kind in (
        (parser.text_string_to_metric_families, "text/plain"),
        (openmetrics.text_string_to_metric_families, "application/openmetrics-text"),
    ):
        families = list(parse(text_of(metrics, kind)))
        assert all(one.documentation for one in families if one.name.startswith("ktitan_"))
        values = {(sample.name, *sample.labels.values()): sample.value for one in families for sample in one.samples}
        assert values["ktitan_tier_hits_total", "ram"] == 3
        assert values["ktitan_tier_read_bytes_total", "nvme"] == 8192
        assert values["ktitan_stream_stall_seconds_total",] == 1.5
        assert values["ktitan_stream_drive_busy_seconds_total",] == 0.5
        assert values["ktitan_stream_guess_gain_seconds",] == -0.002
        chosen = {name[1]: value for name, value in values.items() if name[0] == "ktitan_stream_policy"}
        assert chosen == {policy: float(policy == "admitting") for policy in POLICIES}
        kinds = {one.type for one in families if one.name.startswith(("ktitan_stream", "ktitan_tier"))}
        assert kinds <= {"counter", "gauge", "stateset"}


def test_the_gain_of_guesses_is_absent_before_a_comparison(streamed):
    metrics, counters = streamed
    assert "ktitan_stream_guess_gain_seconds" not in text_of(metrics)
    assert Figures.between(None, counters, 1.0).guess_gain_seconds is None
    counters["guess_gain_ns"] = 3_000_000
    assert "ktitan_stream_guess_gain_seconds 0.003\n" in text_of(metrics)


def test_a_counter_never_falls(streamed):
    metrics, counters = streamed
    for seconds in (2, 1, 3):
        counters["io"]["busy_ns"] = seconds * 10**9
        assert f"ktitan_stream_drive_busy_seconds_total {max(2, seconds)}.0" in text_of(metrics)


def test_nothing_is_shown_where_nothing_is_streamed():
    metrics = Metrics()
    metrics.add(StreamMetrics(lambda: None))
    assert "ktitan_stream" not in text_of(metrics)


def test_the_page_of_telemetry_names_every_metric_and_figure(streamed, repository):
    page = (repository / "docs" / "telemetry.md").read_text("utf-8")
    metrics, counters = streamed
    counters["guess_gain_ns"] = 1
    shown = {one.name for one in parser.text_string_to_metric_families(text_of(metrics, "text/plain"))}
    names = {name for name in shown if name.startswith(("ktitan_stream", "ktitan_tier"))}
    written = set(re.findall(r"`(\w+)`", page))
    assert names and names - {name.removesuffix("_total") for name in written} == set()
    assert set(Figures.__annotations__) - written == set()


def test_the_server_tells_of_streams_while_it_answers(model):
    with serving(*model, "m.gguf") as client:
        first = client.get("/tiers").json["streaming"]
        assert (first["recent"], first["total"]["demands"], first["total"]["hit_rate"]) == (None, 0, None)
        raw = client.open({"prompt": "abab", "max_tokens": 50, "ignore_eos": True}, "/v1/completions")
        wait_for(lambda: client.get("/tiers").json["streaming"]["total"]["demands"])
        assert "ktitan_tier_demands_total" in client.get("/metrics").text
        raw.recv(1)
        raw.close()
        client.wait_idle()
        found = client.get("/tiers").json["streaming"]["total"]
        assert found.keys() == set(Figures.__annotations__)
        assert found["demands"] == found["ram_hits"] + found["misses"] and found["policy"] in POLICIES
        values = dict(re.findall(r"^(ktitan_\S+) (\S+)$", client.get("/metrics").text, re.M))
        assert float(values['ktitan_tier_demands_total{tier="ram"}']) == found["demands"]
