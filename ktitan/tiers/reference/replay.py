"""A trace through the decisions in Python: what csrc/tiers/replay.cpp is compared with, and what stands in for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from ktitan.native.replay import Replayed, ReplaySpec
from ktitan.tiers.reference.auto import Auto, AutoSpec
from ktitan.tiers.reference.residency import Answer, Residency, ResidencySpec

__all__ = ["replay_reference"]

# Layers that the automatic choice looks at.
MOST_LOOKED_AT = 8


def replay_reference(spec: ReplaySpec, policy: int, growth: float) -> Replayed:
    """`ktitan.native.replay.replay` in Python.

    Raises:
        UnsupportedError: the cache's sizes contradict each other.
    """
    layers, tokens, _ = spec.topk.shape
    slots, starts = sum(spec.domain_slots) + spec.spares, set(np.asarray(spec.row_starts).tolist())
    sizes = ([slots], [0] * len(spec.record_domain), [spec.spares], spec.record_domain, spec.domain_slots)
    residency = Residency(ResidencySpec(*sizes, max(policy, 0), growth))
    choice = _Choice(spec, growth) if policy < 0 else None
    hit, policies, passed = np.zeros(spec.topk.shape, bool), np.full(tokens, policy, np.int8), 0
    for token in range(tokens):
        if token in starts:
            residency.sequence()
            if choice is not None:
                choice.auto.sequence()
        if choice is not None:
            policies[token] = choice.auto.policy()
            residency.set_policy(choice.auto.policy())
            choice.auto.step(1)
        residency.step(1)
        for layer in range(layers):
            experts = spec.topk[layer, token].tolist()
            if choice is not None:
                choice.demand(layer, experts)
            hit[layer, token], guests = _demand(residency, [layer * spec.experts + expert for expert in experts])
            passed += guests
    return Replayed(hit, policies, passed)


def _demand(residency: Residency, records: Sequence[int]) -> tuple[list[bool], int]:
    """One layer's call: which records were there, and how many were not admitted."""
    there = [residency.has(record) for record in records]
    waiting = deque(record for record, was in zip(records, there, strict=True) if not was)
    placed = [residency.acquire(record, 1) for record, was in zip(records, there, strict=True) if was]
    held = deque(record for record, was in zip(records, there, strict=True) if was)
    guests = sum(one.guest for one in placed)
    while waiting or held:
        while waiting:
            found = residency.acquire(waiting[0], 1)
            if found.answer == Answer.FULL:
                break
            guests += found.guest
            held.append(waiting.popleft())
        residency.loaded(held[0])
        residency.release(held.popleft())
    return there, guests


class _Choice:
    """`Auto` for a trace: a share of the slots for each layer that is looked at."""

    def __init__(self, spec: ReplaySpec, growth: float) -> None:
        layers, chosen = spec.topk.shape[0], spec.topk.shape[2]
        looked_at = min(layers, MOST_LOOKED_AT)
        self._number = {number * layers // looked_at: number for number in range(looked_at)}
        domains = spec.record_domain[:: spec.experts]
        shares = [max(1, spec.domain_slots[domains[layer]] // domains.count(domains[layer])) for layer in self._number]
        spares = spec.spares * looked_at // layers
        self.auto = Auto(AutoSpec([spec.experts] * looked_at, shares, spares, chosen, growth))

    def demand(self, layer: int, experts: Sequence[int]) -> None:
        """A layer's call."""
        if layer in self._number:
            self.auto.demand(self._number[layer], experts, [1] * len(experts))
