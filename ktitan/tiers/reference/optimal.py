"""A cache that knows the future, slowly and plainly: what csrc/tiers/optimal.cpp is compared with (Belady 1966)."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from ktitan.native.replay import ReplaySpec

__all__ = ["optimal_reference"]


def optimal_reference(spec: ReplaySpec, bypass: bool) -> np.ndarray:
    """`ktitan.native.replay.replay_optimal` in Python: hits, [L, N, K] bool."""
    layers, tokens, _ = spec.topk.shape
    calls = [(layer, token) for token in range(tokens) for layer in range(layers)]
    uses: dict[int, list[int]] = {}
    for time, (layer, token) in enumerate(calls):
        for expert in spec.topk[layer, token].tolist():
            uses.setdefault(layer * spec.experts + expert, []).append(time)

    there: list[set[int]] = [set() for _ in spec.domain_slots]
    hit = np.zeros(spec.topk.shape, bool)
    for now, (layer, token) in enumerate(calls):
        records = [layer * spec.experts + expert for expert in spec.topk[layer, token].tolist()]
        domain = spec.record_domain[layer * spec.experts]
        hit[layer, token] = [record in there[domain] for record in records]
        _Call(uses, now, there[domain], spec.domain_slots[domain]).use(records, bypass)
    return hit


class _Call:
    """One layer's call at the time `now`, for a domain with `slots` that holds `there`."""

    def __init__(self, uses: dict[int, list[int]], now: int, there: set[int], slots: int) -> None:
        self._uses, self._now, self._there, self._slots = uses, now, there, slots

    def use(self, records: list[int], bypass: bool) -> None:
        """Hold the records together, or, where there are too few slots, one after another."""
        misses = [record for record in records if record not in self._there]
        if bypass:
            self._there.update(misses)
            while len(self._there) > self._slots:
                self._there.remove(self._last(self._there))
            return
        in_waves = False
        for record in misses:
            if len(self._there) == self._slots:
                others = self._there - set(records)
                in_waves = in_waves or not others
                self._there.remove(self._last(self._there if in_waves else others))
            self._there.add(record)

    def _last(self, records: set[int]) -> int:
        """The record that is demanded last; those that never are, first."""
        return max(records, key=lambda record: (self._next(record), record))

    def _next(self, record: int) -> float:
        times = self._uses[record]
        later = bisect_right(times, self._now)
        return times[later] if later < len(times) else float("inf")
