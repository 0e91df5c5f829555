"""The controller of guesses: the same decisions in Python and C++, and its promises on a simulated drive."""

import random
import statistics
import time

import pytest

from ktitan.native import native_reason
from ktitan.native.controller import NativeController, native_guess_fits
from ktitan.tiers.reference.controller import Controller, GuessStep, guess_fits

from support.guess_regimes import IDLE, SATURATED, USELESS, Simulated

TRACES = 1000
FULL = 8

needs_library = pytest.mark.skipif(native_reason() is not None, reason=f"native library {native_reason()}")


def random_steps(chance):
    """Stretches of steps of one kind each, with noise, prompts and pauses; guesses pay in some of them."""
    for _ in range(chance.randint(2, 6)):
        wall, stall = chance.randint(10**6, 10**9), chance.random()
        idle, gain = chance.choice((0.0, 0.02, 0.05, 0.5)), chance.uniform(-0.3, 0.3)
        for _ in range(chance.randint(1, 300)):
            yield wall, stall, idle, gain, chance.choice((1,) * 30 + (2, 8, 9, 500, 0))


def trace(seed, *kinds):
    chance = random.Random(seed)
    mode = chance.choice(("off", "on", "auto", "auto", "auto", "auto"))
    full = chance.randint(0, 20)
    all_ = [kind(mode, full) for kind in kinds]
    for wall, stall, idle, gain, tokens in random_steps(chance):
        noise = chance.uniform(0.8, 1.3) * chance.choice((1,) * 40 + (50,))
        saved = gain * wall if all_[0].level else 0
        cost = max(0, int((wall * stall - saved) * noise))
        step = GuessStep(int(wall * noise) * (tokens > 0), cost, int(wall * 0.01), int(wall * idle * noise), tokens)
        answers = [(one.step(step), one.level, one.gain) for one in all_]
        assert all(answer == answers[0] for answer in answers), (seed, answers)


@needs_library
def test_both_decide_alike():
    first = time.time_ns()
    for seed in range(first, first + TRACES):
        trace(seed, Controller, NativeController)
    chance = random.Random(first)
    for _ in range(TRACES):
        numbers = chance.randint(-(10**7), 10**8), chance.randint(1, 10**8), chance.randint(0, 1024)
        assert guess_fits(*numbers) == native_guess_fits(*numbers)


class NeverBusy(Controller):
    def _note_busy(self, step):
        pass


class Hasty(Controller):
    def _finish(self, comparison):
        super()._finish(comparison)
        self._wait = self._spacing


@needs_library
@pytest.mark.parametrize("mutant", [NeverBusy, Hasty])
def test_a_wrong_decision_is_found(mutant):
    first = time.time_ns()
    with pytest.raises(AssertionError):
        for seed in range(first, first + TRACES):
            trace(seed, mutant, NativeController)


@pytest.fixture(params=[Controller, NativeController])
def kind(request):
    if request.param is NativeController and native_reason() is not None:
        pytest.skip(f"native library {native_reason()}")
    return request.param


def paired(kind, mode, regimes):
    """`mode` and off on the same random numbers: the simulation, and its time over that of off in each stretch."""
    seed = time.time_ns()
    tried, off = Simulated(kind(mode, FULL), seed), Simulated(kind("off", FULL), seed)
    return tried, [sum(tried.run(*stretch)) / sum(off.run(*stretch)) for stretch in regimes]


def gains_where_the_drive_is_idle(kind, mode):
    """On at the end of the first comparison, and 10 % of the time from there on."""
    tried, _ = paired(kind, mode, [(IDLE, 100)])
    ratio = sum(tried.run(IDLE, 2000)) / sum(Simulated(kind("off", FULL), 1).run(IDLE, 2000))
    assert tried.controller.level > 0 and ratio <= 0.9, ratio


def is_off_where_the_drive_is_busy(kind, mode):
    """Within 32 steps of the change, and from there on at the cost of 1 %."""
    tried, _ = paired(kind, mode, [(IDLE, 300), (SATURATED, 32)])
    assert tried.controller.level == 0
    tried.run(SATURATED, 2000)
    assert not any(tried.levels[332:])
    _, (ratio,) = paired(kind, mode, [(SATURATED, 2000)])
    assert ratio <= 1.01, ratio


def follows(kind, mode):
    """On and off and on again, as the regime goes."""
    tried, ratios = paired(kind, mode, [(regime, 250) for regime in (IDLE, SATURATED) * 4])
    at = [tried.levels[250 * n + 249] > 0 for n in range(8)]
    assert at == [True, False] * 4, at
    assert all(idle <= 0.95 for idle in ratios[::2]) and all(busy <= 1.02 for busy in ratios[1::2]), ratios


PROMISES = [gains_where_the_drive_is_idle, is_off_where_the_drive_is_busy, follows]


@pytest.mark.parametrize("promise", PROMISES)
def test_three_regimes(kind, promise):
    for _ in range(5):
        promise(kind, "auto")


@pytest.mark.parametrize("mode", ["on", "off"])
def test_always_on_and_always_off_fail_the_same_test(kind, mode):
    failed = []
    for promise in PROMISES:
        try:
            promise(kind, mode)
        except AssertionError:
            failed.append(promise)
    assert follows in failed and len(failed) >= 2, failed


def test_useless_guesses_cost_no_percent(kind):
    ratios = [paired(kind, "auto", [(USELESS, 3000)])[1][0] for _ in range(5)]
    assert statistics.median(ratios) <= 1.01, ratios


def test_it_follows_what_guesses_are_worth(kind):
    tried, _ = paired(kind, "auto", [(IDLE, 300)])
    assert tried.controller.level > 0 and tried.controller.gain > 0
    tried.run(USELESS, 800)
    assert sum(level > 0 for level in tried.levels[-400:]) <= 100  # comparisons
    tried.run(IDLE, 1200)
    assert sum(level > 0 for level in tried.levels[-100:]) >= 50
