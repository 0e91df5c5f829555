"""The decisions of csrc/tiers as the store takes them, without memory or reads: for tests and tools.

The classes have the methods of ktitan/tiers/reference/, which say what they do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_int32, c_int64, c_uint8, c_void_p
from typing import Any

from ktitan.native.decisions_owner import COPY, Ids, Owner, library, numbers
from ktitan.native.decisions_residency import NativeAuto, NativeResidency

__all__ = ["NativeAuto", "NativeCycle", "NativeResidency", "NativeVram", "cycle_least"]


def cycle_least(sizes: Sequence[int]) -> int:
    """Least capacity of a cycle of these records, in bytes."""
    return int(library().kt_cycle_least(numbers(sizes), len(sizes)))


class NativeCycle(Owner):
    """`ktitan.tiers.reference.Cycle` in C++."""

    def __init__(self, sizes: Sequence[int], capacity: int) -> None:
        super().__init__("cycle", library().kt_cycle_create(numbers(sizes), len(sizes), capacity))
        self._measure()

    def _measure(self) -> None:
        self.pinned, self.ring_bytes = int(self._call("pinned")), int(self._call("ring_bytes"))

    def demand(self, record: int) -> tuple[int, int]:
        """Use a record: answer, place."""
        return self._call("demand", record, self._one), self._one.value

    def release(self, record: int) -> None:
        """It was used."""
        self._call("release", record)

    def ahead(self) -> tuple[int, int] | None:
        """The next record to read ahead, and its place."""
        found = self._call("ahead", self._one, self._other)
        return (self._one.value, self._other.value) if found else None

    def loaded(self, record: int) -> None:
        """A read came back."""
        self._call("loaded", record)

    def failed(self, record: int) -> None:
        """A read failed."""
        self._call("failed", record)

    def drop(self) -> None:
        """Forget what is not held."""
        self._call("drop")

    def has(self, record: int) -> bool:
        """Is it there?"""
        return bool(self._call("has", record))

    def resize(self, capacity: int) -> bool:
        """Other bytes for all."""
        changed = bool(self._call("resize", capacity))
        self._measure()
        return changed


class _Device(ctypes.Structure):
    _fields_ = (("context", c_void_p), ("copy_in", COPY), ("copy_out", COPY))


class _Spec(ctypes.Structure):
    _fields_ = (
        ("ram", c_void_p),
        ("pool_slots", Ids),
        ("pool_spares", Ids),
        ("record_pool", POINTER(c_int32)),
        ("on_drive", POINTER(c_uint8)),
        ("records", c_int64),
        ("pools", c_int32),
        ("inclusive", c_int32),
    )


class NativeVram(Owner):
    """`ktitan.tiers.reference.Vram` in C++; `spec` and `device` are those of the reference."""

    COUNTERS = ("promotions", "demotions", "drops", "kept")

    def __init__(self, ram: NativeResidency, spec: Any, device: Any) -> None:
        self._ram, self._records = ram, len(spec.record_pool)
        # The functions live as long as the tier.
        self._device = _Device(
            None,
            COPY(lambda _, pool, vram_slot, ram_slot: device.copy_in(pool, vram_slot, ram_slot)),
            COPY(lambda _, pool, vram_slot, ram_slot: device.copy_out(pool, vram_slot, ram_slot)),
        )
        arrays = (numbers(spec.pool_slots), numbers(spec.pool_spares), numbers(spec.record_pool, c_int32))
        on_drive = numbers(spec.on_drive, c_uint8)
        sizes = (self._records, len(spec.pool_slots), spec.inclusive)
        struct = _Spec(ram.handle, *arrays, on_drive, *sizes)
        made = library().kt_vram_create(ctypes.byref(struct), ctypes.byref(self._device))
        super().__init__("vram", made)

    def promote(self, record: int) -> int:
        """Copy a record in from RAM."""
        return int(self._call("promote", record))

    def use(self, record: int) -> int:
        """Its published slot, or -1."""
        return int(self._call("use", record))

    def publish(self) -> int:
        """A step boundary."""
        return int(self._call("publish"))

    def table(self) -> list[int]:
        """The published table."""
        return list(self._call("table")[: self._records])

    def free(self, pool: int) -> int:
        """Free slots of a pool."""
        return int(self._call("free", pool))

    def counters(self) -> dict[str, int]:
        """What happened so far."""
        counted = (c_int64 * len(self.COUNTERS))()
        self._call("count", counted)
        return dict(zip(self.COUNTERS, counted, strict=True))
