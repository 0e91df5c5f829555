"""The counters of streamed weights for Prometheus: read once a scrape, so that they are of one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, StateSetMetricFamily

from ktitan.api import POLICIES

__all__ = ["StreamMetrics"]

# By tier: tier, counter, name, what it counts.
_BY_TIER = (
    ("ram", "demands", "demands", "Streamed experts and dense layers that were asked for; hits and misses together."),
    ("ram", "hits", "hits", "Of these, those found in RAM or on their way there."),
    ("ram", "misses", "misses", "Of these, those that had to be read."),
    ("ram", "evictions", "evictions", "Records that made room for others."),
    ("ram", "passed", "passed", "Records that were used once and not admitted."),
    ("nvme", "io.reads", "reads", "Reads that the kernel was asked for."),
    ("nvme", "io.read_bytes", "read_bytes", "Bytes that these brought, in whole pages."),
)
# Without a tier: counter, name, divisor (nanoseconds to seconds), what it counts.
_PLAIN = (
    ("stall_ns", "stream_stall_seconds", 1e9, "Time with nothing to compute until a read came back."),
    ("compute_ns", "stream_compute_seconds", 1e9, "Time in products with streamed weights."),
    ("io.busy_ns", "stream_drive_busy_seconds", 1e9, "Time with a read in flight, on any drive."),
    ("io.wait_ns", "stream_drive_wait_seconds", 1e9, "Of this, time in which a call waited; the rest is overlap."),
    ("steps", "stream_steps", 1, "Passes of the model over its layers with streamed experts."),
    ("tokens", "stream_tokens", 1, "Tokens of these passes, prompt and answer."),
    ("sequences", "stream_sequences", 1, "Sequences that began."),
    ("policy_changes", "stream_policy_changes", 1, "Times that another caching policy took over."),
    ("predict_ns", "stream_predict_seconds", 1e9, "Time in predictions."),
    ("predicted", "stream_predicted", 1, "Demands in calls that had been predicted."),
    ("predicted_right", "stream_predicted_right", 1, "Of these, those foretold among as many as a token chooses."),
    ("predicted_absent", "stream_predicted_absent", 1, "Of the predicted demands, those not in RAM when predicted."),
    ("predicted_absent_right", "stream_predicted_absent_right", 1, "Of these, those that were foretold."),
    ("guesses", "stream_guesses", 1, "Reads of what was foretold and not in RAM."),
    ("guess_bytes", "stream_guess_bytes", 1, "Bytes of these reads."),
    ("guesses_used", "stream_guesses_used", 1, "Guesses that were asked for in time, or while they were on their way."),
    ("guesses_late", "stream_guesses_late", 1, "Of these, those still on their way."),
    ("guesses_wasted", "stream_guesses_wasted", 1, "Guesses that made room unused, or failed."),
    ("guess_steps", "stream_guess_steps", 1, "Steps with guesses on."),
    ("guess_changes", "stream_guess_changes", 1, "Times that guesses went on or off."),
)
_GAUGES = (
    ("guess_level", "stream_guess_level", 1, "Most guesses in a call now; 0 is off."),
    ("guess_gain_ns", "stream_guess_gain_seconds", 1e9, "Time that guesses saved in a step by the last comparison."),
    ("resident_bytes", "stream_resident_bytes", 1, "Bytes of the cache that hold something."),
)
# 0 until there is something to say, as in Figures.
_NONE_IF_ZERO = ("guess_gain_ns",)
_POLICY = "Caching policy that decides now: 1 for it, 0 for the others."


class StreamMetrics:
    """A collector; it shows nothing where nothing is streamed.

    Args:
        read: the counters now, by the names of kt_store_counters, reads under "io"; or None.
    """

    def __init__(self, read: Callable[[], Mapping[str, Any] | None]) -> None:
        self._read = read
        self._most: dict[str, int] = {}

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering reads no counter."""
        return []

    def collect(self) -> Iterable[Metric]:
        """All figures of one moment."""
        counters = self._read()
        if counters is None:
            return
        for tier, counter, name, text in _BY_TIER:
            by_tier = CounterMetricFamily(f"ktitan_tier_{name}", text, labels=["tier"])
            by_tier.add_metric([tier], self._grown(counters, counter))
            yield by_tier
        for counter, name, divisor, text in _PLAIN:
            yield CounterMetricFamily(f"ktitan_{name}", text, value=self._grown(counters, counter) / divisor)
        for counter, name, divisor, text in _GAUGES:
            if counter in _NONE_IF_ZERO and not _value(counters, counter):
                continue
            yield GaugeMetricFamily(f"ktitan_{name}", text, value=_value(counters, counter) / divisor)
        states = {policy: policy == POLICIES[counters["policy"]] for policy in POLICIES}
        yield StateSetMetricFamily("ktitan_stream_policy", _POLICY, value=states)

    def _grown(self, counters: Mapping[str, Any], name: str) -> int:
        """A counter that never falls, which would be taken for a restart: a look while a read ends may be short of its
        time.
        """
        self._most[name] = max(self._most.get(name, 0), _value(counters, name))
        return self._most[name]


def _value(counters: Mapping[str, Any], name: str) -> int:
    group, _, leaf = name.rpartition(".")
    return int((counters[group] if group else counters)[leaf])
