"""How a figure is taken: checked first, warmed up, repeated, and compared only within interleaved pairs.

Machines drift: what else runs on them changes from second to second. So a comparison runs both sides alternately and
takes the median of the ratios of its pairs, and every figure carries the spread of its runs.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ktitan.errors import UnsupportedError

__all__ = [
    "Check",
    "Clock",
    "Pairing",
    "Run",
    "Timing",
    "interleave",
    "measure",
    "repeats",
    "settled_clock",
    "verify",
    "wall_clock",
]

Run = Callable[[], object]
Clock = Callable[[Run], float]
Check = Callable[[], str | None]

# Below three runs neither a median nor a spread says anything; a run so slow that three take four times the time that
# was asked for is cut short all the same.
LEAST_RUNS = 3
OVERTIME = 4
# GNU OpenMP's threads go on spinning for 300,000 turns after their work: about 20 ms where a pause takes 140 cycles.
SETTLE_SECONDS = 0.03


@dataclass(frozen=True)
class Timing:
    """The seconds of each run, in the order they ran."""

    seconds: tuple[float, ...]

    @property
    def runs(self) -> int:
        """How many runs were timed."""
        return len(self.seconds)

    @property
    def median(self) -> float:
        """Median seconds a run."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float | None:
        """Interquartile range over the median; None for a single run."""
        return _spread(self.seconds)

    def rate(self, amount: float) -> float:
        """`amount` (bytes, operations, tokens of one run) a second, at the median."""
        return amount / self.median


@dataclass(frozen=True)
class Pairing:
    """Two runs timed alternately: `a[i]`, `b[i]` and `probe[i]` belong to pair i."""

    a: Timing
    b: Timing
    probe: Timing | None = None

    def ratio(self, a_amount: float = 1.0, b_amount: float = 1.0) -> float:
        """A's rate over B's: the median over the pairs. With equal amounts, how many times as fast A is as B."""
        return _median_ratio(self.a.seconds, self.b.seconds) * a_amount / b_amount

    def share(self, a_amount: float, probe_amount: float) -> float | None:
        """A's rate over the probe's: the median over the pairs; None without a probe."""
        if self.probe is None:
            return None
        return _median_ratio(self.a.seconds, self.probe.seconds) * a_amount / probe_amount


def wall_clock(run: Run) -> float:
    """Seconds that `run()` takes, for work that is done when the call returns."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def settled_clock(run: Run) -> float:
    """`wall_clock` after a rest, for pairs of which one side's idle threads would still spin on the other's CPUs."""
    time.sleep(SETTLE_SECONDS)
    return wall_clock(run)


def verify(check: Check, case: str = "") -> None:
    """Let nothing be timed whose result is wrong.

    Raises:
        UnsupportedError: `check` returned a sentence and not None. Of the closed list this is the nearest: the request
            is valid, and this build or machine cannot do it (right). The input is not at fault, nor is a device absent.
    """
    fault = check()
    if fault is not None:
        raise UnsupportedError(
            f"the result is wrong, so nothing is timed: {fault}",
            where=case,
            remedy="report it with the output of `ktitan doctor`; a wrong result has no speed",
        )


def measure(
    run: Run,
    runs: int,
    *,
    seconds: float = math.inf,
    warmup: int = 1,
    check: Check | None = None,
    clock: Clock = wall_clock,
    case: str = "",
) -> Timing:
    """Time `run` up to `runs` times, for about `seconds`, after `check` and `warmup` runs that are not timed.

    Raises:
        UnsupportedError: `check` found the result wrong.
    """
    return Timing(*_alternate([run], runs, seconds, warmup, check, clock, case))


def interleave(
    a: Run,
    b: Run,
    pairs: int,
    *,
    seconds: float = math.inf,
    warmup: int = 1,
    check: Check | None = None,
    probe: Run | None = None,
    clock: Clock = wall_clock,
    case: str = "",
) -> Pairing:
    """Time `a` and `b` alternately, up to `pairs` pairs, for about `seconds`; which one goes first alternates too.

    `probe` is a short run of fixed work (a ceiling) that is timed once beside each pair.

    Raises:
        UnsupportedError: `check` found a result wrong.
    """
    sides = [a, b] if probe is None else [a, b, probe]
    columns = _alternate(sides, pairs, seconds, warmup, check, clock, case)
    return Pairing(*(Timing(column) for column in columns))


def repeats(run: Run, seconds: float, clock: Clock = wall_clock) -> int:
    """How many times `run` fits into `seconds`, at least 1, by one run after one warm-up."""
    run()
    return max(1, math.ceil(seconds / max(clock(run), 1e-9)))


def _alternate(
    sides: list[Run], rounds: int, seconds: float, warmup: int, check: Check | None, clock: Clock, case: str
) -> list[tuple[float, ...]]:
    """Seconds of each side over the rounds, every other round in reverse order."""
    if check is not None:
        verify(check, case)
    for _ in range(warmup):
        for side in sides:
            side()
    columns: list[list[float]] = [[] for _ in sides]
    order = list(range(len(sides)))
    start = time.perf_counter()
    for done in range(1, max(rounds, 1) + 1):
        for index in order:
            columns[index].append(clock(sides[index]))
        order.reverse()
        spent = time.perf_counter() - start
        if spent >= seconds * (1 if done >= LEAST_RUNS else OVERTIME):
            break
    return [tuple(column) for column in columns]


def _median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median over the pairs of their seconds over ours."""
    return statistics.median(b / a for a, b in zip(ours, theirs, strict=True))


def _spread(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / statistics.median(values)
