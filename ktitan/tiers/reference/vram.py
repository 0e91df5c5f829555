"""The tier above RAM: which record is in which VRAM slot, and when a device may see it (csrc/tiers/vram.h)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from ktitan.tiers.reference.residency import Answer, Residency

__all__ = ["Device", "Vram", "VramAnswer", "VramCounters", "VramSpec"]


class VramAnswer(IntEnum):
    """`enum kt_vram_answer`."""

    PROMOTED = 0
    THERE = 1
    ABSENT = 2
    FULL = 3
    FAILED = 4


class Device(Protocol):
    """The copies between a VRAM slot and a RAM slot of a pool; False: it failed."""

    def copy_in(self, pool: int, vram_slot: int, ram_slot: int) -> bool:
        """From RAM to VRAM."""
        ...

    def copy_out(self, pool: int, vram_slot: int, ram_slot: int) -> bool:
        """From VRAM to RAM."""
        ...


@dataclass(frozen=True)
class VramSpec:
    """The tier's sizes.

    Attributes:
        pool_slots: VRAM slots of each pool; 0: none.
        pool_spares: of them, kept free for promotions.
        record_pool: the pool of each record.
        on_drive: which records may be dropped, because a drive has them.
        inclusive: a promoted record keeps its RAM slot.
    """

    pool_slots: Sequence[int]
    pool_spares: Sequence[int]
    record_pool: Sequence[int]
    on_drive: Sequence[bool]
    inclusive: bool = False


@dataclass
class VramCounters:
    """`struct kt_vram_counters`."""

    promotions: int = 0
    demotions: int = 0
    drops: int = 0
    kept: int = 0


class Vram:
    """VRAM slots above the RAM slots of a `Residency`."""

    def __init__(self, ram: Residency, spec: VramSpec, device: Device) -> None:
        self._ram, self._spec, self._device = ram, spec, device
        self._free = [list(reversed(range(slots))) for slots in spec.pool_slots]
        self._slot: dict[int, int] = {}
        self._visible: list[OrderedDict[int, None]] = [OrderedDict() for _ in spec.pool_slots]  # in the order of use
        self._promoted: list[int] = []
        self._leaving: list[int] = []
        self._lingering: list[int] = []  # were to leave RAM, but are held there
        self._table = [-1] * len(spec.record_pool)
        self._counters = VramCounters()

    def promote(self, record: int) -> int:
        """Copy a record in from RAM, where it is held until the next publish."""
        pool = self._spec.record_pool[record]
        if record in self._leaving:
            self._leaving.remove(record)
            self._visible[pool][record] = None
        if record in self._slot:
            return VramAnswer.THERE
        ram_slot = self._hold_in_ram(record)
        if ram_slot < 0:
            return VramAnswer.ABSENT
        if not self._free[pool]:
            self._ram.release(record)
            self._choose_victim(pool)
            return VramAnswer.FULL
        slot = self._free[pool][-1]
        if not self._device.copy_in(pool, slot, ram_slot):
            self._ram.release(record)
            return VramAnswer.FAILED
        self._slot[record] = self._free[pool].pop()
        self._promoted.append(record)
        self._counters.promotions += 1
        if self._spec.pool_spares[pool]:
            self._choose_victim(pool)
        return VramAnswer.PROMOTED

    def use(self, record: int) -> int:
        """Its slot by the published table, or -1; it is the most recently used one now."""
        visible = self._visible[self._spec.record_pool[record]]
        if record in visible:
            visible.move_to_end(record)
        return self._table[record]

    def publish(self) -> int:
        """A step boundary; how many entries of the table changed."""
        promoted, leaving, lingering = self._promoted, self._leaving, self._lingering
        self._promoted, self._leaving, self._lingering = [], [], []
        for record in lingering:
            if record in self._visible[self._spec.record_pool[record]]:
                self._leave_ram(record)
        changed = len(promoted)
        for turn in range(max(len(promoted), len(leaving))):
            if turn < len(promoted):
                self._show(promoted[turn])
            if turn < len(leaving):
                changed += self._leave(leaving[turn])
        return changed

    def table(self) -> list[int]:
        """VRAM slot of each record or -1: what a device may read until the next publish."""
        return list(self._table)

    def free(self, pool: int) -> int:
        """Slots of a pool that are free now."""
        return len(self._free[pool])

    def counters(self) -> VramCounters:
        """What happened so far."""
        return VramCounters(**vars(self._counters))

    def _choose_victim(self, pool: int) -> None:
        """The least recently used record is to leave, where the spare slots would not be free after the publish."""
        leaving = sum(self._spec.record_pool[record] == pool for record in self._leaving)
        if len(self._free[pool]) + leaving < max(self._spec.pool_spares[pool], 1) and self._visible[pool]:
            self._leaving.append(self._oldest(pool))
            del self._visible[pool][self._leaving[-1]]

    def _oldest(self, pool: int) -> int:
        return next(iter(self._visible[pool]))

    def _hold_in_ram(self, record: int) -> int:
        if not self._ram.has(record):
            return -1
        answer, slot, *_ = self._ram.acquire(record, 0)
        if answer == Answer.HIT:
            return slot
        self._ram.release(record)
        return -1

    def _leave_ram(self, record: int) -> None:
        if self._ram.has(record) and not self._ram.evict(record):
            self._lingering.append(record)

    def _show(self, record: int) -> None:
        self._table[record] = self._slot[record]
        self._visible[self._spec.record_pool[record]][record] = None
        self._ram.release(record)
        if not self._spec.inclusive:
            self._leave_ram(record)

    def _leave(self, record: int) -> bool:
        """A victim leaves, unless it would be lost."""
        pool = self._spec.record_pool[record]
        if self._ram.has(record):
            self._counters.drops += 1
        elif self._demote(record, pool):
            self._counters.demotions += 1
        elif self._spec.on_drive[record]:
            self._counters.drops += 1
        else:
            self._counters.kept += 1
            self._visible[pool][record] = None
            return False
        self._free[pool].append(self._slot.pop(record))
        self._table[record] = -1
        return True

    def _demote(self, record: int, pool: int) -> bool:
        """Copy a record to a free slot of RAM."""
        if not self._ram.free(pool):
            return False
        slot = self._ram.acquire(record, 0).slot
        if not self._device.copy_out(pool, self._slot[record], slot):
            self._ram.failed(record)
            return False
        self._ram.loaded(record)
        self._ram.release(record)
        return True
