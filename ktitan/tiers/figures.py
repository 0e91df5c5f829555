"""What the counters of a store mean: named figures of a span of time, from the counters at its ends.

Everything is counted where it happens (csrc/tiers); nothing here is measured or estimated, but for `wasted_bytes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ktitan.tiers.options import POLICIES

__all__ = ["GAUGES", "Figures"]

# Counters that say how things stand, not how often something happened: a span of time has those of its end.
GAUGES = ("resident_bytes", "arena_bytes", "filled_bytes", "policy", "guess_level", "guess_gain_ns")

Counters = Mapping[str, Any]


@dataclass(frozen=True)
class Figures:
    """What a store did in a span of time. None: nothing to divide by, or not known; never NaN.

    Seconds are wall time, bytes are bytes; a share or a rate of hits is 0 to 1. Only RAM and the drive are tiers of a
    store so far: hits and demotions of VRAM have no names here until something lives there.

    Attributes:
        seconds: of the span.
        steps: passes of the model over its layers with streamed experts.
        tokens: of these steps, prompt and answer alike; a look at the counters between the two tells them apart.
        sequences: that began: prompts of more than 8 tokens.
        demands: streamed experts and dense layers that were asked for, each once a layer and step: ram_hits + misses.
        ram_hits: that were in RAM or on their way there; guesses_used of these thanks to a guess.
        misses: that had to be read after they were asked for; a dense layer that does not stay in RAM always counts.
        hit_rate: ram_hits / demands.
        evictions: records that made room for others.
        passed: demands that were not admitted: read, used and let go, so that nothing made room.
        reads: that the kernel was asked for.
        read_bytes: that these brought, whole pages of 4 KiB: what the kernel counts for the drive, without page cache.
        read_bytes_per_token: None without tokens.
        stall_seconds: time in calls that had nothing to compute until a read came back.
        stall_share: of the span.
        drive_seconds: time with a read in flight, on any drive, until its end was noticed: while products run nobody
            looks, so this and overlap_seconds are upper bounds by at most the products of a layer at a time.
        drive_share: of the span.
        overlap_seconds: drive_seconds less the time in which a call waited for a read: the drive worked while the
            caller computed, in the store or elsewhere.
        drive_bytes_per_second: read_bytes / drive_seconds, what the drive gave while it worked.
        read_bytes_per_second: read_bytes / seconds, what it gave on the whole.
        compute_seconds: time in products with streamed weights.
        predict_seconds: time in predictions, on the calling thread.
        predicted: demands of calls that had been predicted.
        recall: share of `predicted` that was foretold among as many experts as a token chooses.
        predicted_absent: of `predicted`, not in RAM when predicted.
        recall_of_misses: share of these that was foretold: all that reading ahead could save.
        guesses: reads of what was foretold and absent.
        guess_bytes: of the records that these brought.
        guesses_used: that were asked for while they were there or on their way, and so became ram_hits.
        guesses_late: of these, still on their way.
        guesses_wasted: that made room for others unused, or failed.
        waste_share: guesses_wasted / guesses.
        wasted_bytes: guesses_wasted times the mean bytes of a guess; exact where all records have one size.
        guessing: whether guesses are on at the end.
        guess_level: most guesses in a call, at the end.
        guess_changes: times that guesses went on or off.
        guess_gain_seconds: time that guesses saved in a step, by the last comparison; below 0 a cost. None before one.
        policy: that decides at the end, a name of `ktitan.tiers.options.POLICIES`; None before a step with experts.
        policy_changes: times that another one took over.
    """

    seconds: float
    steps: int
    tokens: int
    sequences: int
    demands: int
    ram_hits: int
    misses: int
    hit_rate: float | None
    evictions: int
    passed: int
    reads: int
    read_bytes: int
    read_bytes_per_token: float | None
    stall_seconds: float
    stall_share: float | None
    drive_seconds: float
    drive_share: float | None
    overlap_seconds: float
    drive_bytes_per_second: float | None
    read_bytes_per_second: float | None
    compute_seconds: float
    predict_seconds: float
    predicted: int
    recall: float | None
    predicted_absent: int
    recall_of_misses: float | None
    guesses: int
    guess_bytes: int
    guesses_used: int
    guesses_late: int
    guesses_wasted: int
    waste_share: float | None
    wasted_bytes: float | None
    guessing: bool
    guess_level: int
    guess_changes: int
    guess_gain_seconds: float | None
    policy: str | None
    policy_changes: int

    @classmethod
    def between(cls, before: Counters | None, after: Counters, seconds: float, tokens: int | None = None) -> Figures:
        """The figures of the time between two looks at the counters, also while a call runs.

        Args:
            before, after: by the names of kt_store_counters, reads under "io" (`model.ktitan.store_stats()`); a name
                that is missing counts as 0. None: since the store was opened.
            seconds: wall time between them.
            tokens: that were computed, where the caller knows better than the counters, which need streamed experts.
        """
        span = _Span(before or {}, after, seconds, tokens)
        return cls(**span.demands(), **span.reads(), **span.guesses(), **span.choices())

    def as_dict(self) -> dict[str, Any]:
        """All figures by name, plain data."""
        return asdict(self)


class _Span:
    """The counters at both ends, and their differences."""

    def __init__(self, before: Counters, after: Counters, seconds: float, tokens: int | None) -> None:
        self._before, self._after = before, after
        self._seconds = max(0.0, seconds)
        self._tokens = self._count("tokens") if tokens is None else tokens

    def _count(self, name: str) -> int:
        return _difference(self._before, self._after, name)

    def _time(self, name: str) -> float:
        return self._count(f"{name}_ns") / 1e9

    def _read(self, name: str) -> int:
        return _difference(self._before.get("io", {}), self._after.get("io", {}), name)

    def demands(self) -> dict[str, Any]:
        demands, hits = self._count("demands"), self._count("hits")
        return {
            "seconds": self._seconds,
            "tokens": self._tokens,
            "demands": demands,
            "ram_hits": hits,
            "hit_rate": _share(hits, demands),
            **{name: self._count(name) for name in ("steps", "sequences", "misses", "evictions", "passed")},
        }

    def reads(self) -> dict[str, Any]:
        read_bytes, stall = self._read("read_bytes"), self._time("stall")
        busy, waited = (self._read(name) / 1e9 for name in ("busy_ns", "wait_ns"))
        return {
            "reads": self._read("reads"),
            "read_bytes": read_bytes,
            "read_bytes_per_token": _ratio(read_bytes, self._tokens),
            "stall_seconds": stall,
            "stall_share": _share(stall, self._seconds),
            "drive_seconds": busy,
            "drive_share": _share(busy, self._seconds),
            "overlap_seconds": max(0.0, busy - waited),
            "drive_bytes_per_second": _ratio(read_bytes, busy),
            "read_bytes_per_second": _ratio(read_bytes, self._seconds),
            "compute_seconds": self._time("compute"),
        }

    def guesses(self) -> dict[str, Any]:
        guesses, wasted, guess_bytes = (self._count(name) for name in ("guesses", "guesses_wasted", "guess_bytes"))
        predicted, absent = self._count("predicted"), self._count("predicted_absent")
        mean = _ratio(guess_bytes, guesses)
        gain_ns = self._after.get("guess_gain_ns", 0)  # 0 before a comparison
        return {
            "predict_seconds": self._time("predict"),
            "predicted": predicted,
            "recall": _share(self._count("predicted_right"), predicted),
            "predicted_absent": absent,
            "recall_of_misses": _share(self._count("predicted_absent_right"), absent),
            "guesses": guesses,
            "guess_bytes": guess_bytes,
            "guesses_wasted": wasted,
            "waste_share": _share(wasted, guesses),
            "wasted_bytes": None if mean is None else wasted * mean,
            "guessing": self._after.get("guess_level", 0) > 0,
            "guess_level": self._after.get("guess_level", 0),
            "guess_gain_seconds": gain_ns / 1e9 if gain_ns else None,
            **{name: self._count(name) for name in ("guesses_used", "guesses_late", "guess_changes")},
        }

    def choices(self) -> dict[str, Any]:
        chose = self._after.get("steps", 0) > 0
        return {
            "policy": POLICIES[self._after.get("policy", 0)] if chose else None,
            "policy_changes": self._count("policy_changes"),
        }


def _difference(before: Counters, after: Counters, name: str) -> int:
    """What a counter grew by. Two looks while a call runs may be out of step by an event, and never below nothing."""
    return max(0, int(after.get(name, 0)) - int(before.get(name, 0)))


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _share(part: float, whole: float) -> float | None:
    """At most 1: two looks while a call runs may be out of step by an event, or by the time that looking takes."""
    return min(1.0, part / whole) if whole else None
