"""Timing with a clock that says what it is told: order, medians, pair ratios, checks."""

from __future__ import annotations

import statistics

import pytest

from ktitan.bench.measure import (
    SETTLE_SECONDS,
    Pairing,
    Timing,
    interleave,
    measure,
    repeats,
    settled_clock,
    verify,
    wall_clock,
)
from ktitan.errors import KtitanError, UnsupportedError


class Script:
    """Runs that note their name, and a clock that gives each the next of its times."""

    def __init__(self, **times):
        self.times = {name: iter(values) for name, values in times.items()}
        self.calls = []

    def run(self, name):
        return lambda: self.calls.append(name)

    def clock(self, run):
        run()
        return next(self.times[self.calls[-1]])


def test_timing_by_hand():
    timing = Timing((4.0, 1.0, 2.0, 3.0, 5.0))
    assert (timing.runs, timing.median) == (5, 3.0)
    assert timing.spread == pytest.approx((4.0 - 2.0) / 3.0)
    assert timing.rate(12.0) == 4.0


def test_one_run_has_no_spread():
    assert Timing((1.0,)).spread is None


def test_measure_warms_up_untimed_and_counts_runs():
    script = Script(a=[3.0, 1.0, 2.0])
    timing = measure(script.run("a"), 3, warmup=2, clock=script.clock)
    assert script.calls == ["a"] * 5
    assert timing.seconds == (3.0, 1.0, 2.0)


def test_interleave_alternates_and_swaps_the_first():
    script = Script(a=range(1, 9), b=range(1, 9))
    interleave(script.run("a"), script.run("b"), 4, warmup=0, clock=script.clock)
    assert "".join(script.calls) == "abbaabba"


def test_pairs_stay_together_when_the_order_swaps():
    script = Script(a=[1.0, 2.0, 3.0], b=[10.0, 20.0, 30.0], p=[7.0, 8.0, 9.0])
    pairing = interleave(script.run("a"), script.run("b"), 3, warmup=0, probe=script.run("p"), clock=script.clock)
    assert "".join(script.calls) == "abppbaabp"
    assert pairing == Pairing(Timing((1.0, 2.0, 3.0)), Timing((10.0, 20.0, 30.0)), Timing((7.0, 8.0, 9.0)))


def test_ratio_is_the_median_of_pairs_not_of_medians():
    # The machine slows down tenfold on the way; A is twice as fast within every pair but the last.
    a, b = (1.0, 5.0, 10.0, 10.0, 10.0), (2.0, 10.0, 20.0, 20.0, 1.0)
    pairing = Pairing(Timing(a), Timing(b))
    assert pairing.ratio() == 2.0
    assert pairing.ratio(3.0, 1.0) == 6.0
    assert statistics.median(b) / statistics.median(a) != 2.0


def test_share_of_a_probe():
    pairing = Pairing(Timing((2.0, 4.0, 6.0)), Timing((1.0,) * 3), Timing((1.0, 2.0, 3.0)))
    assert pairing.share(8.0, 16.0) == 0.25
    without = Pairing(Timing((2.0,)), Timing((1.0,)))
    assert without.share(1.0, 1.0) is None


def test_a_wrong_result_is_never_timed():
    script = Script(a=[], b=[])
    for timed in (
        lambda check: measure(script.run("a"), 3, check=check, clock=script.clock, case="gemm"),
        lambda check: interleave(script.run("a"), script.run("b"), 3, check=check, clock=script.clock, case="gemm"),
    ):
        with pytest.raises(UnsupportedError, match="off by 3") as caught:
            timed(lambda: "off by 3")
        assert caught.value.where == "gemm"
        assert caught.value.remedy
    assert script.calls == []


def test_a_check_that_passes_comes_first():
    script = Script(a=[1.0])

    def check():
        script.calls.append("check")

    measure(script.run("a"), 1, check=check, clock=script.clock)
    assert script.calls == ["check", "a", "a"]


def test_verify_passes_and_is_one_of_the_closed_list():
    verify(lambda: None)
    assert issubclass(UnsupportedError, KtitanError)


def fake_time(monkeypatch, step):
    """Every look at the clock is `step` seconds later; a run between two looks takes that long."""
    now = iter(step * tick for tick in range(10_000))
    monkeypatch.setattr("time.perf_counter", lambda: next(now))


def test_seconds_end_the_runs(monkeypatch):
    fake_time(monkeypatch, 1.0)
    # A run costs three ticks: two of its own clock and the look at the time that is left.
    assert measure(lambda: None, 1000, seconds=30.0).runs == 10


def test_three_runs_even_when_the_time_is_up(monkeypatch):
    fake_time(monkeypatch, 1.0)
    assert measure(lambda: None, 1000, seconds=3.0).runs == 3


def test_a_crawling_run_is_cut_short(monkeypatch):
    fake_time(monkeypatch, 100.0)
    assert measure(lambda: None, 1000, seconds=1.0).runs == 1


def test_repeats_fill_the_time():
    script = Script(a=[0.02])
    assert repeats(script.run("a"), 0.05, script.clock) == 3
    slow = Script(a=[9.0])
    assert repeats(slow.run("a"), 0.05, slow.clock) == 1


def test_the_settled_clock_rests_before_it_starts(monkeypatch):
    events = []
    monkeypatch.setattr("time.sleep", lambda seconds: events.append(seconds))
    monkeypatch.setattr("time.perf_counter", lambda: events.append("look") or 0.0)
    settled_clock(lambda: events.append("run"))
    assert events == [SETTLE_SECONDS, "look", "run", "look"]


def test_wall_clock_runs_once():
    calls = []
    assert wall_clock(lambda: calls.append(1)) >= 0
    assert calls == [1]
