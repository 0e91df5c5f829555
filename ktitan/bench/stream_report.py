"""The figures of `ktitan bench stream`, from what its rounds counted."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ktitan.bench.measure import Timing
from ktitan.bench.result import Result
from ktitan.tiers.figures import GAUGES, Figures

__all__ = ["Conditions", "Round", "Side", "stream_results"]

_MB = 1e6


@dataclass(frozen=True)
class Side:
    """One run of one program.

    Attributes:
        about: what a worker said of its model; empty for the peer.
        answer: `prefill` seconds, seconds of `steps`, `read_bytes` of the drive in the steps; ours also `store`, what
            the counters grew by, and `after`, the counters at the end.
        load_bytes: read from drives until it was ready.
        peak_bytes: most resident memory, mapped files included.
    """

    about: dict[str, Any]
    answer: dict[str, Any]
    load_bytes: int
    peak_bytes: int

    @property
    def seconds(self) -> float:
        """Wall time of all steps."""
        return sum(self.answer["steps"])

    @property
    def figures(self) -> Figures:
        """Figures of the steps; of our side."""
        grown, after = self.answer["store"], self.answer.get("after", {})
        reads = {name.removeprefix("io_"): count for name, count in grown.items() if name.startswith("io_")}
        gauges = {name: after[name] for name in GAUGES if name in after}
        return Figures.between(None, {**grown, **gauges, "io": reads}, self.seconds, len(self.answer["steps"]))

    def step_ms(self, share: float) -> float:
        """The step that `share` of all steps are not slower than, in milliseconds."""
        steps = sorted(self.answer["steps"])
        return 1e3 * steps[min(int(share * len(steps)), len(steps) - 1)]


@dataclass(frozen=True)
class Round:
    """What ran in turn: the streamed model, the peer, the model in RAM, and reads of the drive in bytes a second."""

    ours: Side
    peer: Side | None
    resident: Side | None
    drive_rate: float | None
    drive_how: str
    load: float

    @property
    def missed_bytes(self) -> int:
        """Bytes of records that had to be read, as stored."""
        return int(self.ours.answer["store"].get("io_wanted_bytes", 0))

    @property
    def ceiling_seconds(self) -> float | None:
        """The longer of reading what was missing and computing all; None where neither is known."""
        return self._longer(self.missed_bytes, None if self.resident is None else self.resident.seconds)

    @property
    def prompt_seconds(self) -> float | None:
        """The same for the prompt."""
        asked = self.ours.answer.get("prompt_store", {}).get("io_wanted_bytes", 0)
        return self._longer(asked, None if self.resident is None else self.resident.answer["prefill"])

    def _longer(self, size: int, compute: float | None) -> float | None:
        drive = None if self.drive_rate is None else size / self.drive_rate
        return max((seconds for seconds in (drive, compute) if seconds is not None), default=None)


@dataclass(frozen=True)
class Conditions:
    """What held for all rounds; `case` is `ktitan.bench.stream.Case`."""

    stem: str
    case: Any
    limit_bytes: int | None
    ram_bytes: int
    program_bytes: int
    slack_bytes: int
    read_ahead: str

    def text(self, rounds: Sequence[Round]) -> str:
        """For the metric."""
        limit = "no group" if self.limit_bytes is None else f"group of {self.limit_bytes / _MB:.0f} MB, no swap"
        record_bytes = rounds[0].ours.about["record_bytes"]
        return (
            f"{self.case.tokens} random tokens after {self.case.prompt}, {self.case.threads} threads, budget "
            f"{self.ram_bytes / _MB:.0f} MB, {limit}, cold (memory of the cache taken), {self.read_ahead}, "
            f"records of {record_bytes / _MB:.2f} MB, load average up to {max(one.load for one in rounds):.1f}"
        )


def stream_results(conditions: Conditions, rounds: Sequence[Round]) -> list[Result]:
    """One row a figure: medians over the rounds, ratios within rounds."""
    return [
        _speed(conditions, rounds),
        *_steps(conditions, rounds),
        *_bytes(conditions, rounds),
        *_store(conditions, rounds),
        *_ceilings(conditions, rounds),
        *_memory(conditions, rounds),
    ]


def _speed(conditions: Conditions, rounds: Sequence[Round]) -> Result:
    tokens = conditions.case.tokens
    timing = Timing(tuple(one.ours.seconds for one in rounds))
    ceilings = [one.ceiling_seconds for one in rounds if one.ceiling_seconds]
    shares = [one.ceiling_seconds / one.ours.seconds for one in rounds if one.ceiling_seconds]
    bound = "reads or compute" if rounds[0].resident is not None else "reads; compute in RAM was not measured"
    return Result(
        case=f"stream-decode-{conditions.stem}",
        metric=f"{conditions.text(rounds)}; ceiling: {bound}",
        value=timing.rate(tokens),
        unit="tokens/s",
        ceiling=tokens / statistics.median(ceilings) if ceilings else None,
        share_of_ceiling=statistics.median(shares) if shares else None,
        peer=conditions.case.peer,
        peer_value=_peer(rounds, lambda side: tokens / side.seconds),
        ratio_to_peer=_ratio(rounds, lambda side: 1 / side.seconds),
        runs=timing.runs,
        spread=timing.spread,
    )


def _steps(conditions: Conditions, rounds: Sequence[Round]) -> Iterator[Result]:
    for name, share in (("median", 0.5), ("p90", 0.9)):

        def value(side: Side, share: float = share) -> float:
            return side.step_ms(share)

        yield _row(conditions, rounds, f"stream-step-{name}", "time of a token", "ms", value)
    yield _prompt(conditions, rounds)


def _prompt(conditions: Conditions, rounds: Sequence[Round]) -> Result:
    """The prompt against the longer of reading what it needed and computing it in RAM."""
    tokens = conditions.case.prompt
    timing = Timing(tuple(one.ours.answer["prefill"] for one in rounds))
    ceilings = [seconds for one in rounds if (seconds := one.prompt_seconds)]  # none where nothing was missing
    shares = [seconds / one.ours.answer["prefill"] for one in rounds if (seconds := one.prompt_seconds)]
    asked = rounds[-1].ours.answer.get("prompt_store", {}).get("io_wanted_bytes", 0)
    read = rounds[-1].ours.answer.get("prompt_bytes", 0)
    return Result(
        case=f"stream-prompt-{conditions.stem}",
        metric=f"{tokens} tokens at once, cold; {asked / _MB:.0f} MB asked for, {read / _MB:.0f} MB by /proc/self/io; "
        "ceiling: reads or compute",
        value=timing.rate(tokens),
        unit="tokens/s",
        ceiling=tokens / statistics.median(ceilings) if ceilings else None,
        share_of_ceiling=statistics.median(shares) if shares else None,
        peer=conditions.case.peer,
        peer_value=_peer(rounds, lambda side: tokens / side.answer["prefill"]),
        ratio_to_peer=_ratio(rounds, lambda side: 1 / side.answer["prefill"]),
        runs=timing.runs,
        spread=timing.spread,
    )


def _bytes(conditions: Conditions, rounds: Sequence[Round]) -> Iterator[Result]:
    tokens = conditions.case.tokens
    metric = "bytes from the drive for a token, by /proc/self/io"
    yield _row(conditions, rounds, "stream-read", metric, "MB", lambda side: side.answer["read_bytes"] / tokens / _MB)
    metric = "bytes from the drive until the model was ready"
    yield _row(conditions, rounds, "stream-load", metric, "MB", lambda side: side.load_bytes / _MB)


def _store(conditions: Conditions, rounds: Sequence[Round]) -> Iterator[Result]:
    """Counters of the store, of the last round; the sums that have to agree stand side by side."""
    stem, side = conditions.stem, rounds[-1].ours
    found, read = side.figures, side.answer["read_bytes"]
    tokens = len(side.answer["steps"])
    metric = (
        f"{found.ram_hits} hits + {found.misses} misses of {found.demands} demands, {found.evictions} evictions, "
        f"{found.passed} passed through; policy {found.policy or 'none'}, changed {found.policy_changes} times"
    )
    yield Result(f"stream-hits-{stem}", metric, 100 * (found.hit_rate or 0.0), "%", runs=1)
    metric = f"bytes read by the store's count; {rounds[-1].missed_bytes / tokens / _MB:.2f} MB were asked for"
    yield Result(
        f"stream-counted-{stem}",
        f"{metric}; the ceiling is the kernel's count",
        found.read_bytes / tokens / _MB,
        "MB",
        ceiling=read / tokens / _MB,
        share_of_ceiling=found.read_bytes / read if read else None,
        runs=1,
    )
    all_figures = [one.ours.figures for one in rounds]
    stall = statistics.median(one.stall_seconds for one in all_figures)
    metric = "time of a token with nothing to compute until a read came back"
    yield Result(f"stream-stall-{stem}", metric, 1e3 * stall / tokens, "ms", runs=len(rounds))
    shares = [one.stall_share for one in all_figures if one.stall_share is not None]
    if shares:
        metric = "share of the time with nothing to compute until a read came back"
        yield Result(f"stream-stall-share-{stem}", metric, 100 * statistics.median(shares), "%", runs=len(shares))
    yield from _prefetch(stem, found)


def _prefetch(stem: str, found: Figures) -> Iterator[Result]:
    """Predictions and guesses of the last round; nothing where there were none."""
    guesses = f"{found.guesses} guesses, {found.guesses_used} used, {found.guesses_late} of these late"
    shares = {
        "recall": (found.recall, f"foretold of {found.predicted} demands, by as many guesses as a token chooses"),
        "recall-misses": (found.recall_of_misses, f"foretold of {found.predicted_absent} demands that were not in RAM"),
        "waste": (found.waste_share, f"of {guesses}: made room unused, or failed"),
    }
    for name, (share, metric) in shares.items():
        if share is not None:
            yield Result(f"stream-{name}-{stem}", metric, 100 * share, "%", runs=1)


def _ceilings(conditions: Conditions, rounds: Sequence[Round]) -> Iterator[Result]:
    rates = [one.drive_rate for one in rounds if one.drive_rate is not None]
    missed = [one.missed_bytes / one.ours.seconds for one in rounds]
    if rates:
        shares = [
            bytes_a_second / one.drive_rate
            for bytes_a_second, one in zip(missed, rounds, strict=True)
            if one.drive_rate
        ]
        yield Result(
            f"stream-drive-{conditions.stem}",
            f"missing bytes over wall time; ceiling: random reads of a record, {rounds[0].drive_how}",
            statistics.median(missed) / 1e9,
            "GB/s",
            ceiling=statistics.median(rates) / 1e9,
            share_of_ceiling=statistics.median(shares),
            runs=len(rates),
        )
    resident = [one.resident.seconds for one in rounds if one.resident is not None]
    if resident:
        timing = Timing(tuple(resident))
        metric = "the same tokens with all weights in RAM and no limit; logits and choices have equal bits"
        rate = timing.rate(conditions.case.tokens)
        yield Result(
            f"stream-resident-{conditions.stem}", metric, rate, "tokens/s", runs=timing.runs, spread=timing.spread
        )


def _memory(conditions: Conditions, rounds: Sequence[Round]) -> Iterator[Result]:
    peak = max(one.ours.peak_bytes for one in rounds)
    allowed = conditions.ram_bytes + conditions.program_bytes + conditions.slack_bytes
    yield Result(
        case=f"stream-peak-{conditions.stem}",
        metric=(
            f"peak of resident memory; ceiling: budget + {conditions.program_bytes / _MB:.0f} MB, the peak of the "
            f"program with one small layer, + {conditions.slack_bytes / _MB:.0f} MB"
        ),
        value=peak / _MB,
        unit="MB",
        ceiling=allowed / _MB,
        share_of_ceiling=peak / allowed,
        peer=conditions.case.peer,
        peer_value=_peer(rounds, lambda side: side.peak_bytes / _MB),
        runs=len(rounds),
    )


def _row(
    conditions: Conditions, rounds: Sequence[Round], case: str, metric: str, unit: str, value: Callable[[Side], float]
) -> Result:
    return Result(
        case=f"{case}-{conditions.stem}",
        metric=metric,
        value=statistics.median(value(one.ours) for one in rounds),
        unit=unit,
        peer=conditions.case.peer,
        peer_value=_peer(rounds, value),
        ratio_to_peer=_ratio(rounds, value),
        runs=len(rounds),
    )


def _peer(rounds: Sequence[Round], value: Callable[[Side], float]) -> float | None:
    values = [value(one.peer) for one in rounds if one.peer is not None]
    return statistics.median(values) if values else None


def _ratio(rounds: Sequence[Round], value: Callable[[Side], float]) -> float | None:
    """Ours over the peer's, the median of the rounds."""
    pairs = [(value(one.ours), value(one.peer)) for one in rounds if one.peer is not None]
    ratios = [ours / theirs for ours, theirs in pairs if theirs]
    return statistics.median(ratios) if ratios else None
