"""What records count for, and who makes room first (csrc/tiers/residency_order.cpp); the same operations on doubles."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

__all__ = ["Policy", "Use", "Uses", "is_worth"]

# Of a domain's slots, for members that were acquired again (SLRU).
PROTECTED_OF_5 = 4
# What a token counts grows up to here; then everything is counted anew in smaller numbers.
MOST_WORTH = 2.0**256
# Beyond this a score in units of `worth` may overflow.
MOST_UNIT = 2.0**900
MOST_SEED = 2.0**60


class Policy(IntEnum):
    """`enum kt_policy`."""

    LRU = 0
    SLRU = 1
    LFU = 2
    DECAYED_LFU = 3
    SEQUENCE_LFU = 4
    ADMITTING = 5
    PINNED = 6

    @property
    def admits_all(self) -> bool:
        """Whether every record that comes may become a member."""
        return self not in (Policy.ADMITTING, Policy.PINNED)

    @property
    def decays(self) -> bool:
        """Whether tokens count less with time."""
        return self in (Policy.DECAYED_LFU, Policy.ADMITTING, Policy.PINNED)


@dataclass(slots=True)
class Use:
    """How a record was used.

    Attributes:
        stamp: of its last acquisition.
        tokens: that chose it, in all.
        recent: of these, in the sequence `sequence`.
        sequence: the number of that sequence.
        score: tokens that chose it, decayed; in units of `Uses.worth`.
    """

    stamp: int = 0
    tokens: int = 0
    recent: int = 0
    sequence: int = 0
    score: float = 0.0


@dataclass
class Uses:
    """The uses of all records, and the clocks that they follow.

    Attributes:
        records: of each record.
        growth: what a token counts more than the one before it.
        worth: what a token counts now.
        mean: what a token of this step counts of it, on average.
    """

    records: list[Use]
    growth: float
    worth: float = 1.0
    mean: float = 1.0
    _stamp: int = 0
    _sequence: int = 0

    def step(self, tokens: int) -> None:
        """The model takes a step of so many tokens."""
        self.mean = 1.0
        if self.growth == 1 or tokens < 1:
            return
        grown = _power(self.growth, tokens)
        self.worth *= grown
        if tokens > 1:
            self.mean = (1 - 1 / grown) / (tokens * (1 - 1 / self.growth))
        if self.worth > MOST_WORTH:
            for use in self.records:
                use.score = use.score / self.worth if self.worth <= MOST_UNIT else 0.0
            self.worth = 1.0

    def sequence(self) -> None:
        """A sequence begins."""
        self._sequence += 1

    def seed(self, record: int, tokens: float) -> None:
        """Count for so many tokens."""
        self.records[record].score = (min(tokens, MOST_SEED) if tokens > 0 else 0.0) * self.worth

    def score_after(self, record: int, tokens: int) -> float:
        """The score once so many tokens more chose it."""
        return self.records[record].score + tokens * self.mean * self.worth

    def note(self, record: int, tokens: int) -> None:
        """It is acquired for so many tokens."""
        use = self.records[record]
        use.score = self.score_after(record, tokens)
        use.recent = self._recent(use) + tokens
        use.sequence = self._sequence
        use.tokens += tokens
        self._stamp += 1
        use.stamp = self._stamp

    def rank(self, policy: Policy, record: int) -> tuple[float, int]:
        """The least one makes room first."""
        use = self.records[record]
        if policy == Policy.LFU:
            return use.tokens, use.stamp
        if policy == Policy.SEQUENCE_LFU:
            return self._recent(use), use.stamp
        return use.score if policy.decays else 0, use.stamp

    def _recent(self, use: Use) -> int:
        return use.recent if use.sequence == self._sequence else 0


def is_worth(score: float, other: float) -> bool:
    """Is a record that counts so much worth the slot of one that counts `other`?"""
    return score >= 0.8 * other


def _power(base: float, exponent: int) -> float:
    """By squares, as in C++: `**` may round otherwise."""
    result = 1.0
    while exponent > 0:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result
