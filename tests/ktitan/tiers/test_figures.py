"""Figures from counters: values by hand, nothing to divide by, and the order of two looks."""

import pytest

from ktitan.tiers.figures import Figures
from ktitan.tiers.options import POLICIES

BEFORE = {
    **{"demands": 100, "hits": 40, "misses": 60, "evictions": 5, "passed": 1, "steps": 4, "tokens": 20, "sequences": 1},
    **{"stall_ns": 10**9, "compute_ns": 2 * 10**9, "predict_ns": 10**7, "policy": 0, "policy_changes": 0},
    **{"predicted": 10, "predicted_right": 9, "predicted_absent": 5, "predicted_absent_right": 4},
    **{"guesses": 6, "guess_bytes": 6000, "guesses_used": 3, "guesses_late": 1, "guesses_wasted": 1},
    **{"guess_level": 0, "guess_steps": 2, "guess_changes": 1, "guess_gain_ns": 7},
    "io": {"reads": 60, "read_bytes": 60 * 4096, "busy_ns": 3 * 10**9, "wait_ns": 10**9, "uring": 1},
}
AFTER = {
    **{"demands": 180, "hits": 100, "misses": 80, "evictions": 9, "passed": 4},
    **{"steps": 14, "tokens": 30, "sequences": 2},
    **{"stall_ns": 15 * 10**8, "compute_ns": 5 * 10**9, "predict_ns": 3 * 10**7, "policy": 5, "policy_changes": 2},
    **{"predicted": 50, "predicted_right": 39, "predicted_absent": 25, "predicted_absent_right": 14},
    **{"guesses": 26, "guess_bytes": 36000, "guesses_used": 13, "guesses_late": 4, "guesses_wasted": 6},
    **{"guess_level": 3, "guess_steps": 9, "guess_changes": 2, "guess_gain_ns": -2_000_000},
    "io": {"reads": 80, "read_bytes": 100 * 4096, "busy_ns": 5 * 10**9, "wait_ns": 16 * 10**8, "uring": 1},
}


def test_every_figure_of_a_span():
    found = Figures.between(BEFORE, AFTER, 4.0)
    expected = {
        **{"seconds": 4, "steps": 10, "tokens": 10, "sequences": 1, "demands": 80, "ram_hits": 60, "misses": 20},
        **{"hit_rate": 0.75, "evictions": 4, "passed": 3, "reads": 20, "read_bytes": 163840},
        **{"read_bytes_per_token": 16384, "stall_seconds": 0.5, "stall_share": 0.125, "drive_seconds": 2},
        **{"drive_share": 0.5, "overlap_seconds": 1.4, "drive_bytes_per_second": 81920, "compute_seconds": 3},
        **{"read_bytes_per_second": 40960, "predict_seconds": 0.02, "predicted": 40, "recall": 0.75},
        **{"predicted_absent": 20, "recall_of_misses": 0.5, "guesses": 20, "guess_bytes": 30000, "guesses_used": 10},
        **{"guesses_late": 3, "guesses_wasted": 5, "waste_share": 0.25, "wasted_bytes": 7500, "guessing": True},
        **{"guess_level": 3, "guess_changes": 1, "guess_gain_seconds": -0.002, "policy": "admitting"},
        "policy_changes": 2,
    }
    assert found.as_dict().keys() == expected.keys()
    for name, value in expected.items():
        assert getattr(found, name) == (value if isinstance(value, str) else pytest.approx(value)), name


def test_since_the_start_and_by_tokens_that_the_caller_counted():
    found = Figures.between(None, AFTER, 10.0, tokens=4)
    assert (found.demands, found.tokens, found.read_bytes_per_token) == (180, 4, 102400)
    assert found.policy == POLICIES[5]


def test_nothing_happened_is_none_and_not_a_number():
    nothing = Figures.between(None, {}, 0.0)
    ratios = [name for name, kind in Figures.__annotations__.items() if "None" in kind]
    assert [name for name in ratios if getattr(nothing, name) is not None] == []
    assert nothing.demands == 0 and not nothing.guessing
    still = Figures.between(AFTER, AFTER, 2.0)
    assert (still.hit_rate, still.stall_share, still.waste_share, still.drive_share) == (None, 0, None, 0)
    assert (still.policy, still.guess_gain_seconds) == ("admitting", -0.002)


def test_looks_out_of_step_give_nothing_below_nothing():
    found = Figures.between(AFTER, BEFORE, 1.0)
    assert all(value >= 0 for name, value in vars_of(found).items() if name != "guess_gain_seconds")
    late = Figures.between(None, {"stall_ns": 1001, "io": {"busy_ns": 1002, "wait_ns": 1100}}, 1e-6)
    assert (late.stall_share, late.drive_share, late.overlap_seconds) == (1, 1, 0)


def vars_of(figures):
    return {name: value for name, value in figures.as_dict().items() if isinstance(value, int | float)}
