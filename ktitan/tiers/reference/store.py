"""The store without bytes: residency and cycle joined as csrc/tiers/store.cpp joins them, and what it counts."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ktitan.tiers.reference.cycle import Cycle, CycleAnswer
from ktitan.tiers.reference.residency import Answer, Residency

__all__ = ["Counters", "ReferenceStore", "Wave"]


@dataclass
class Counters:
    """What happened, by the names of `kt_store_counters`; `read_bytes` are whole slots."""

    demands: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    waves: int = 0
    read_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Wave:
    """Records that are held at once, and their slots.

    Attributes:
        hits: those that were there, in the order of demand.
        misses: those that are read, in the order of demand.
        victims: those that made room, in the order in which they did.
        slots: of hits and misses.
    """

    hits: tuple[int, ...]
    misses: tuple[int, ...]
    victims: tuple[int, ...]
    slots: dict[int, int]


class ReferenceStore:
    """Records that come and go; reads take no time.

    Args:
        record_pool: the pool of each record; -1: a dense one, part of the cycle in the order of the records.
        slot_bytes: bytes of each record's slot.
        pool_slots: slots of each pool.
        cycle_bytes: memory of the cycle.
    """

    def __init__(
        self, record_pool: Sequence[int], slot_bytes: Sequence[int], pool_slots: Sequence[int], cycle_bytes: int = 0
    ) -> None:
        dense = [record for record, pool in enumerate(record_pool) if pool < 0]
        pooled = [record for record, pool in enumerate(record_pool) if pool >= 0]
        # Dense records and pooled ones are numbered on their own below.
        self._number = {record: n for records in (dense, pooled) for n, record in enumerate(records)}
        self._pooled, self._dense = pooled, dense
        self._slot_bytes = tuple(slot_bytes)
        self.residency = Residency(pool_slots, [record_pool[record] for record in pooled])
        self.cycle = Cycle([slot_bytes[record] for record in dense], cycle_bytes)
        self.counters = Counters()

    def demand(self, records: Iterable[int], failing: Collection[int] = ()) -> list[Wave]:
        """Use pooled records; one that is named many times is demanded once.

        First every record that is there is held, then the others in order until a pool is full: the first wave. Records
        are released in the order in which they were held, and each one that makes room starts a wave.
        A read of `failing` ends the call when it would be consumed.
        """
        waiting = list(dict.fromkeys(records))
        hits = [record for record in waiting if self.residency.has(self._number[record])]
        waves = [self._hold(hits, [record for record in waiting if record not in hits])]
        held = deque(waves[0].slots)
        while held:
            if self._read(held[0], failing):
                self._settle(held, failing)
                break
            self.residency.release(self._number[held.popleft()])
            started = {record for wave in waves for record in wave.slots}
            left = [record for record in waiting if record not in started]
            wave = self._hold([], left)
            if wave.slots:
                self.counters.waves += 1
                waves.append(wave)
                held += wave.slots
        return waves

    def use(self, record: int) -> bool:
        """Use a dense record, then read ahead as far as there is room. Does it stay, and was there?

        What passes through the ring is read at each use, however early, and so never a hit.
        """
        number = self._number[record]
        answer, _ = self.cycle.demand(number)
        hit = answer == CycleAnswer.HIT and number < self.cycle.pinned
        if answer != CycleAnswer.HIT:
            self._read_dense(number)
            self.cycle.demand(number)
        self._count(hit)
        self.cycle.release(number)
        while (ahead := self.cycle.ahead()) is not None:
            self._read_dense(ahead[0])
        return hit

    def _hold(self, hits: Sequence[int], waiting: Sequence[int]) -> Wave:
        """Hold what is there, then of `waiting` what finds a slot, up to the first that does not."""
        slots: dict[int, int] = {}
        victims: list[int] = []
        misses: list[int] = []
        for record in hits:
            slots[record] = self.residency.acquire(self._number[record])[1]
            self._count(True)
        for record in waiting:
            answer, slot, victim = self.residency.acquire(self._number[record])
            if answer == Answer.FULL:
                break
            slots[record] = slot
            misses.append(record)
            self._count(False)
            if victim >= 0:
                self.counters.evictions += 1
                victims.append(self._pooled[victim])
        return Wave(tuple(hits), tuple(misses), tuple(victims), slots)

    def _read(self, record: int, failing: Collection[int]) -> bool:
        """The read of a held record comes back, unless it was there. Has it failed?"""
        number = self._number[record]
        if not self.residency.is_loading(number):
            return False
        if record in failing:
            self.residency.failed(number)
            return True
        self.residency.loaded(number)
        self.counters.read_bytes += self._slot_bytes[record]
        return False

    def _settle(self, held: deque[int], failing: Collection[int]) -> None:
        """After a failure of the first one: the others come back and are released."""
        held.popleft()
        for record in held:
            if not self._read(record, failing):
                self.residency.release(self._number[record])

    def _read_dense(self, number: int) -> None:
        self.cycle.loaded(number)
        self.counters.read_bytes += self._slot_bytes[self._dense[number]]

    def _count(self, hit: bool) -> None:
        self.counters.demands += 1
        self.counters.hits += hit
        self.counters.misses += not hit
