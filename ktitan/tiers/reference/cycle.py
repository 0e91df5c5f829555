"""Records that are used one after another, over and over: some stay, a ring brings the others (csrc/tiers/cycle.h)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from ktitan.tiers.pools import least_cycle
from ktitan.tiers.record import PAGE_BYTES

__all__ = ["Cycle", "CycleAnswer"]

# The ring: this part of the memory, at most so much, at least the two largest neighbours.
_RING_SHARE = 8
_MOST_RING = 256 << 20


class CycleAnswer(IntEnum):
    """`enum kt_cycle_answer`."""

    HIT = 0
    LOADING = 1
    MISS = 2
    BUSY = 3


@dataclass(slots=True)
class _Place:
    """Where a record is in the ring; later places have higher stamps."""

    at: int
    stamp: int


def count_pinned(sizes: Sequence[int], capacity: int) -> int:
    """How many records stay, from the first on: as many as leave room for a ring."""
    if sum(sizes) <= capacity:
        return len(sizes)
    wanted = min(capacity // _RING_SHARE, _MOST_RING)
    fitting = (n for n in range(len(sizes)) if capacity - sum(sizes[:n]) >= max(wanted, least_cycle(sizes[n:])))
    return max(fitting, default=0)


class Cycle:
    """Dense records within `capacity` bytes.

    Args:
        sizes: bytes of each record, whole pages, in the order of first use.
        capacity: bytes for all; at least `least_cycle(sizes)`.
    """

    def __init__(self, sizes: Sequence[int], capacity: int) -> None:
        self._sizes = tuple(sizes)
        self._lay_out(capacity)
        self._next = [*range(1, len(sizes)), 0]
        self._ring: OrderedDict[int, _Place] = OrderedDict()
        self._loading: set[int] = set()
        self._there: set[int] = set()
        self._stamps = 0
        self._floor = 0  # places with stamps below may make room
        self._current = -1  # demanded last
        self._front = len(sizes) - 1  # reading ahead has come to here
        self._held = -1
        self._asked = False
        self._resting = False

    def demand(self, record: int) -> tuple[int, int]:
        """Use a record: (`CycleAnswer`, where it is or -1)."""
        if self._held >= 0:
            return CycleAnswer.BUSY, -1
        if not self._asked or record != self._current:
            self._begin(record)
        if record in self._there:
            self._held, self._asked = record, False
            return CycleAnswer.HIT, self._at(record)
        if record in self._loading:
            return CycleAnswer.LOADING, self._at(record)
        if record >= self.pinned:
            self._floor = self._stamps
            if not self._place(record):
                return CycleAnswer.BUSY, -1
            self._floor = self._ring[record].stamp
        self._loading.add(record)
        self._front = record
        return CycleAnswer.MISS, self._at(record)

    def release(self, record: int) -> None:
        """The held record was used."""
        if record == self._held >= 0:
            self._held = -1
            if record in self._ring:
                self._floor = self._ring[record].stamp + 1

    def ahead(self) -> tuple[int, int] | None:
        """The next record to read ahead and where it goes; None: no room, or nothing to read."""
        waited_for = self._asked and self._current not in self._there and self._current not in self._loading
        if self._resting or waited_for:
            return None
        record = self._find_next()
        if record is None:
            self._resting = True
            return None
        if record >= self.pinned and not self._place(record):
            return None
        self._loading.add(record)
        self._front = record
        return record, self._at(record)

    def loaded(self, record: int) -> None:
        """A read came back."""
        if record in self._loading:
            self._loading.discard(record)
            self._there.add(record)

    def failed(self, record: int) -> None:
        """A read failed: its place is free; nothing is read ahead until the next demand."""
        if record in self._loading:
            self._forget(record)
            self._resting = True

    def drop(self) -> None:
        """Forget every record that is there, but one that is held."""
        for record in self._there - {self._held}:
            self._forget(record)
        self._start_over()

    def has(self, record: int) -> bool:
        """Is it there?"""
        return record in self._there

    def resize(self, capacity: int) -> bool:
        """Other bytes for all: what stays before and after is kept, the ring is made anew.

        False, with nothing changed, below `least_cycle` or while a record is held or on its way.
        """
        if self._held >= 0 or self._loading or capacity < least_cycle(self._sizes):
            return False
        kept = min(self.pinned, count_pinned(self._sizes, capacity))
        for record in [record for record in self._there if record >= kept]:
            self._forget(record)
        self._lay_out(capacity)
        self._start_over()
        return True

    def _lay_out(self, capacity: int) -> None:
        sizes = self._sizes
        self.pinned = count_pinned(sizes, capacity)
        self._pin_at = [sum(sizes[:n]) for n in range(self.pinned)]
        self._ring_at = sum(sizes[: self.pinned])
        ring = 0 if self.pinned == len(sizes) else (capacity - self._ring_at) // PAGE_BYTES * PAGE_BYTES
        self.ring_bytes = ring

    def _start_over(self) -> None:
        """Reading ahead begins anew behind what was demanded last."""
        self._front = self._current if self._current >= 0 else len(self._sizes) - 1
        self._resting = False

    def _at(self, record: int) -> int:
        return self._pin_at[record] if record < self.pinned else self._ring[record].at

    def _begin(self, record: int) -> None:
        """A new demand: learn what follows what, and where reading ahead goes on."""
        last = self._current if self._current >= 0 else len(self._sizes) - 1
        expected = self._next[last] == record or self._current == record
        if not expected and self._current >= 0:
            self._next[last] = record
        place = self._ring.get(record)
        went_back = place is not None and place.stamp < self._floor
        if place is not None:
            self._floor = place.stamp
        elif not expected:
            self._floor = self._stamps
        if not expected or went_back or self._front == last:
            self._front = record
        self._current, self._asked, self._resting = record, True, False

    def _find_next(self) -> int | None:
        """The next record on the way that is not there."""
        for _ in self._sizes:
            record = self._next[self._front]
            if record == self._current:
                return None
            if record not in self._there and record not in self._loading:
                return record
            if record in self._ring and self._ring[record].stamp < self._floor:
                return None
            self._front = record
        return None

    def _place(self, record: int) -> bool:
        """Give a record a place in the ring; what may make room does, the oldest first."""
        while (at := self._room_behind(self._sizes[record])) is None:
            oldest, place = next(iter(self._ring.items()))
            if oldest in self._loading or place.stamp >= self._floor:
                return False
            self._forget(oldest)
        self._ring[record] = _Place(at, self._stamps)
        self._stamps += 1
        return True

    def _room_behind(self, size: int) -> int | None:
        """Where `size` bytes fit behind the newest record of the ring, in one piece."""
        if not self._ring:
            return self._ring_at
        newest = next(reversed(self._ring))
        oldest_at, newest_at = next(iter(self._ring.values())).at, self._ring[newest].at
        start = newest_at + self._sizes[newest]
        if newest_at < oldest_at:
            return start if start + size <= oldest_at else None
        if start + size <= self._ring_at + self.ring_bytes:
            return start
        return self._ring_at if self._ring_at + size <= oldest_at else None

    def _forget(self, record: int) -> None:
        self._ring.pop(record, None)
        self._there.discard(record)
        self._loading.discard(record)
