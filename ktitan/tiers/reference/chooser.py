"""The store's side of choosing a policy: layers looked at, their share, their demands (csrc/tiers/chooser.h)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ktitan.tiers.reference.auto import Auto, AutoSpec
from ktitan.tiers.reference.residency import Residency

__all__ = ["Chooser", "LayerRecord"]

MOST_LOOKED_AT = 8


@dataclass(frozen=True, slots=True)
class LayerRecord:
    """A record of an expert: its layer, counted from 0 up, and its domain."""

    layer: int
    domain: int


class Chooser:
    """Which policy should decide, by the demands of a store's calls.

    Args:
        records: of the experts, by their number in the residency.
        growth: what a token counts more than the one before it.
    """

    def __init__(self, records: Sequence[LayerRecord], growth: float) -> None:
        self._records, self._growth = records, growth
        layers = max((record.layer for record in records), default=-1) + 1
        looked_at = min(layers, MOST_LOOKED_AT)
        numbers = {number * layers // looked_at: number for number in range(looked_at)}
        self._place: dict[int, tuple[int, int]] = {}  # of a record: number of its layer, and of the expert in it
        self._experts = [0] * looked_at
        for record, what in enumerate(records):
            if what.layer in numbers:
                number = numbers[what.layer]
                self._place[record] = number, self._experts[number]
                self._experts[number] += 1
        self._noted: dict[int, int] = {}
        self._auto: Auto | None = None
        self._tokens = 1
        self._slots: list[int] = []
        self._spares, self._short = 0, False

    def share_out(self, pool_slots: Sequence[int], pool_spares: Sequence[int], domain_slots: Sequence[int]) -> None:
        """The sizes, at the start and when they change."""
        of_domain = Counter(record.domain for record in self._records)
        self._slots = []
        for number in range(len(self._experts)):
            here = Counter(self._records[record].domain for record, place in self._place.items() if place[0] == number)
            share = sum(domain_slots[domain] * some // of_domain[domain] for domain, some in here.items())
            self._slots.append(max(1, share))
        spares = sum(pool_spares)
        self._spares = max(spares * len(self._place) // max(1, len(self._records)), min(1, spares))
        self._short = sum(pool_slots) < len(self._records)
        if self._auto is not None:
            self._auto.resize(self._slots, self._spares)

    def note(self, record: int, tokens: int) -> None:
        """A record that so many tokens of the call chose."""
        if record in self._place:
            self._noted[record] = tokens

    def end_call(self, residency: Residency) -> None:
        """The call is over, and the next step has not begun."""
        noted, self._noted = self._noted, {}
        if not noted or not self._short:
            return
        if self._auto is None:
            self._make(residency, sum(noted.values()))
            return
        places = [self._place[record] for record in noted]
        self._auto.demand(places[0][0], [expert for _, expert in places], list(noted.values()))

    def step(self, tokens: int) -> None:
        """A step of so many tokens begins."""
        self._tokens = tokens
        if self._auto is not None:
            self._auto.step(tokens)

    def sequence(self) -> None:
        """A sequence begins."""
        if self._auto is not None:
            self._auto.sequence()

    def policy(self) -> int:
        """The policy that should decide, or -1."""
        return self._auto.policy() if self._auto is not None and self._short else -1

    def _make(self, residency: Residency, demands: int) -> None:
        chosen = max(1, -(-demands // self._tokens))
        self._auto = Auto(AutoSpec(self._experts, self._slots, self._spares, chosen, self._growth))
        self._auto.step(self._tokens)
        for record, (layer, expert) in self._place.items():
            score, pinned = residency.score(record), residency.pinned(record)
            if score > 0 or pinned:
                self._auto.seed(layer, expert, score, pinned)
