"""Which policy would do best, measured by shadow caches (csrc/tiers/auto.h)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ktitan.errors import UnsupportedError
from ktitan.tiers.reference.policies import Policy
from ktitan.tiers.reference.residency import Answer, Residency, ResidencySpec

__all__ = ["Auto", "AutoSpec"]

CANDIDATES = (
    Policy.LRU,
    Policy.SLRU,
    Policy.DECAYED_LFU,
    Policy.SEQUENCE_LFU,
    Policy.ADMITTING,
    Policy.PINNED,
)
# Policies are compared after so many demands, by hits that fade by 1/32 with each window.
WINDOW = 1024
FADING = 32


@dataclass(frozen=True)
class AutoSpec:
    """`kt_auto_spec`.

    Attributes:
        layer_records: experts of each layer that is looked at.
        layer_slots: its members.
        spares: spare slots of these layers together.
        chosen: experts of a token.
        growth: what a token counts more than the one before it.
    """

    layer_records: Sequence[int]
    layer_slots: Sequence[int]
    spares: int
    chosen: int
    growth: float


class Auto:
    """Shadows of the candidates, and the one that decides.

    Raises:
        UnsupportedError: the sizes contradict each other.
    """

    def __init__(self, spec: AutoSpec) -> None:
        if not spec.layer_slots or min(*spec.layer_records, *spec.layer_slots, spec.chosen) < 1 or spec.spares < 0:
            raise UnsupportedError("no choice of policies for these sizes", "auto", "see csrc/tiers/auto.h")
        self._firsts = [sum(spec.layer_records[:layer]) for layer in range(len(spec.layer_records))]
        domains = [layer for layer, records in enumerate(spec.layer_records) for _ in range(records)]
        slots = sum(spec.layer_slots) + spec.spares
        sizes = ([slots], [0] * len(domains), [spec.spares], domains, spec.layer_slots)
        self._shadows = {one: Residency(ResidencySpec(*sizes, one, spec.growth)) for one in CANDIDATES}
        self._pins = 0
        self._policy = _first_policy(slots, len(spec.layer_slots) * spec.chosen)
        self._forget()

    def step(self, tokens: int) -> None:
        """The model takes a step of so many tokens."""
        for shadow in self._shadows.values():
            shadow.step(tokens)

    def sequence(self) -> None:
        """A sequence begins."""
        for shadow in self._shadows.values():
            shadow.sequence()

    def demand(self, layer: int, experts: Sequence[int], tokens: Sequence[int]) -> None:
        """The demands of a call: distinct experts of a layer, and how many tokens chose each."""
        wanted = [(self._firsts[layer] + expert, some) for expert, some in zip(experts, tokens, strict=True)]
        for policy in self._candidates():
            self._hits[policy] += _hits(self._shadows[policy], wanted)
        self._demands += len(experts)
        if self._demands >= WINDOW:
            self._compare()

    def seed(self, layer: int, expert: int, tokens: float, pinned: bool) -> None:
        """What an expert counts for at the start, and whether it is pinned."""
        record = self._firsts[layer] + expert
        for shadow in self._shadows.values():
            shadow.seed(record, tokens)
            before = shadow.pinned(record)
            shadow.pin(record, pinned)
        self._pins += self._shadows[Policy.LRU].pinned(record) - before
        self._forget()

    def resize(self, layer_slots: Sequence[int], spares: int) -> bool:
        """The slots have changed; False where their numbers contradict each other."""
        slots = [sum(layer_slots) + spares]
        if any(shadow.resize(slots, [spares], layer_slots) is None for shadow in self._shadows.values()):
            return False
        self._pins = 0
        self._policy = Policy.ADMITTING if self._policy == Policy.PINNED else self._policy
        self._forget()
        return True

    def policy(self) -> int:
        """The one that should decide now."""
        return self._policy

    def rates(self) -> list[float]:
        """Measured hit rate of each policy of late; -1: no candidate, or nothing measured."""
        rates = [-1.0] * len(Policy)
        for policy in self._candidates() if self._past_demands else ():
            rates[policy] = self._past_hits[policy] / self._past_demands
        return rates

    def _candidates(self) -> list[Policy]:
        return [policy for policy in CANDIDATES if policy != Policy.PINNED or self._pins]

    def _forget(self) -> None:
        self._hits, self._past_hits = dict.fromkeys(CANDIDATES, 0), dict.fromkeys(CANDIDATES, 0)
        self._demands = self._past_demands = 0

    def _compare(self) -> None:
        past = self._past_hits
        for policy in CANDIDATES:
            past[policy] += self._hits[policy] - past[policy] // FADING
            self._hits[policy] = 0
        self._past_demands += self._demands - self._past_demands // FADING
        self._demands = 0
        best = max(self._candidates(), key=past.__getitem__)
        if (past[best] - past[self._policy]) ** 2 > self._past_demands:
            self._policy = best


def _first_policy(slots: int, demand: int) -> Policy:
    if 3 * slots < demand:
        return Policy.LRU
    return Policy.ADMITTING if slots <= demand else Policy.DECAYED_LFU


def _hits(shadow: Residency, wanted: Sequence[tuple[int, int]]) -> int:
    """What is there is held first, then the rest; the one held longest makes room for the next one."""
    there = [shadow.has(record) for record, _ in wanted]
    held: deque[int] = deque()
    for present in (True, False):
        for (record, tokens), was in zip(wanted, there, strict=True):
            if was != present:
                continue
            while shadow.acquire(record, tokens).answer == Answer.FULL:
                shadow.release(held.popleft())
            shadow.loaded(record)
            held.append(record)
    for record in held:
        shadow.release(record)
    return sum(there)
