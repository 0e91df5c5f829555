"""Which record is where: pools of slots, the least recently acquired record makes room (csrc/tiers/residency.h)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

__all__ = ["Answer", "Residency"]


class Answer(IntEnum):
    """`enum kt_residency_answer`."""

    HIT = 0
    MISS = 1
    LOADING = 2
    FULL = 3


@dataclass(slots=True)
class _Pool:
    """Slots of one size class; `there` is in the order of acquiring, {record: slot}."""

    slots: int
    fresh: int = 0
    freed: list[int] = field(default_factory=list)
    there: OrderedDict[int, int] = field(default_factory=OrderedDict)
    busy: set[int] = field(default_factory=set)

    def take_slot(self) -> int:
        if self.fresh < self.slots:
            self.fresh += 1
            return self.fresh - 1
        return self.freed.pop()


class Residency:
    """Records in the slots of their pools.

    Args:
        pool_slots: slots of each pool, at least one.
        record_pool: the pool of each record.
    """

    def __init__(self, pool_slots: Sequence[int], record_pool: Sequence[int]) -> None:
        self._pools = [_Pool(slots) for slots in pool_slots]
        self._pool_of = [self._pools[pool] for pool in record_pool]
        self._holds = [0] * len(record_pool)
        self._loading: set[int] = set()

    def acquire(self, record: int) -> tuple[int, int, int]:
        """Hold a record: (`Answer`, its slot or -1, the record that lost it or -1)."""
        pool = self._pool_of[record]
        slot = pool.there.get(record, -1)
        victim = -1
        if slot >= 0:
            pool.there.move_to_end(record)
            answer = Answer.LOADING if record in self._loading else Answer.HIT
        else:
            if len(pool.busy) == pool.slots:
                return Answer.FULL, -1, -1
            if len(pool.there) == pool.slots:
                victim = self._victim(pool)
                self._leave(victim)
            slot = pool.there[record] = pool.take_slot()
            self._loading.add(record)
            answer = Answer.MISS
        self._holds[record] += 1
        pool.busy.add(record)
        return answer, slot, victim

    def has(self, record: int) -> bool:
        """Would `acquire` answer HIT or LOADING?"""
        return record in self._pool_of[record].there

    def is_loading(self, record: int) -> bool:
        """Is it on its way?"""
        return record in self._loading

    def loaded(self, record: int) -> None:
        """A record that missed is filled."""
        self._loading.discard(record)
        self._settle(record)

    def failed(self, record: int) -> None:
        """A record that missed cannot be filled: its slot is free, nobody holds it."""
        if record in self._loading:
            self._loading.discard(record)
            self._holds[record] = 0
            self._settle(record)
            self._leave(record)

    def release(self, record: int) -> None:
        """Undo one `acquire`."""
        if self._holds[record]:
            self._holds[record] -= 1
            self._settle(record)

    def evict(self, record: int) -> bool:
        """Forget a record; False when it is held, on its way or not there."""
        pool = self._pool_of[record]
        if record not in pool.there or record in pool.busy:
            return False
        self._leave(record)
        return True

    def slot(self, record: int) -> int:
        """Its slot, or -1."""
        return self._pool_of[record].there.get(record, -1)

    def count(self) -> int:
        """Records that are there."""
        return sum(len(pool.there) for pool in self._pools)

    def free(self, pool: int) -> int:
        """Slots of a pool that no record has."""
        return self._pools[pool].slots - len(self._pools[pool].there)

    def _settle(self, record: int) -> None:
        if not self._holds[record] and record not in self._loading:
            self._pool_of[record].busy.discard(record)

    def _victim(self, pool: _Pool) -> int:
        return next(record for record in pool.there if record not in pool.busy)

    def _leave(self, record: int) -> None:
        pool = self._pool_of[record]
        pool.freed.append(pool.there.pop(record))
