"""The decisions of csrc/tiers as the store takes them, without memory or reads: for tests and tools.

The classes have the methods of ktitan/tiers/reference/, which say what they do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_bool, c_int32, c_int64, c_uint8, c_void_p
from functools import lru_cache
from typing import Any

from ktitan.errors import UnsupportedError
from ktitan.native.library import loaded

__all__ = ["NativeCycle", "NativeResidency", "NativeVram", "cycle_least"]

_Ids = POINTER(c_int64)
_COPY = ctypes.CFUNCTYPE(c_bool, c_void_p, c_int32, c_int64, c_int64)
_KINDS = {"p": c_void_p, "q": c_int64, "i": c_int32, "?": c_bool, "o": _Ids, "w": POINTER(c_int32), "n": None}
# The answer, then the arguments: o and w addresses of 64-bit and 32-bit numbers, n nothing, others as in library.py.
_SIGNATURES = {
    "kt_residency_create": "poiwq",
    "kt_residency_destroy": "np",
    "kt_residency_acquire": "ipqoo",
    "kt_residency_has": "?pq",
    "kt_residency_loaded": "npq",
    "kt_residency_failed": "npq",
    "kt_residency_release": "npq",
    "kt_residency_evict": "?pq",
    "kt_residency_slot": "qpq",
    "kt_residency_count": "qp",
    "kt_residency_free": "qpi",
    "kt_cycle_create": "poqq",
    "kt_cycle_destroy": "np",
    "kt_cycle_least": "qoq",
    "kt_cycle_pinned": "qp",
    "kt_cycle_ring_bytes": "qp",
    "kt_cycle_demand": "ipqo",
    "kt_cycle_release": "npq",
    "kt_cycle_ahead": "?poo",
    "kt_cycle_loaded": "npq",
    "kt_cycle_failed": "npq",
    "kt_cycle_drop": "np",
    "kt_cycle_has": "?pq",
    "kt_cycle_resize": "?pq",
    "kt_vram_create": "ppp",
    "kt_vram_destroy": "np",
    "kt_vram_promote": "ipq",
    "kt_vram_use": "qpq",
    "kt_vram_publish": "qp",
    "kt_vram_table": "op",
    "kt_vram_free": "qpi",
    "kt_vram_count": "npp",
}


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    """The library, with these functions declared.

    Raises:
        HardwareError: there is no library.
    """
    handle = loaded()
    for name, letters in _SIGNATURES.items():
        function = getattr(handle, name)
        function.restype = _KINDS[letters[0]]
        function.argtypes = [_KINDS[letter] for letter in letters[1:]]
    return handle


def _numbers(values: Sequence[int], kind: Any = c_int64) -> Any:
    return (kind * max(len(values), 1))(*values)


class _Owner:
    """Calls `kt_<prefix>_<name>` on a handle that it gives back in the end."""

    def __init__(self, prefix: str, handle: int | None) -> None:
        if not handle:
            raise UnsupportedError(f"no {prefix} of these sizes", prefix, "see csrc/tiers for what it needs")
        self._prefix, self._handle = prefix, handle
        self._calls: dict[str, Callable[..., Any]] = {}
        self._one, self._other = c_int64(-1), c_int64(-1)

    def _call(self, name: str, *arguments: Any) -> Any:
        call = self._calls.get(name)
        if call is None:
            call = self._calls[name] = getattr(_library(), f"kt_{self._prefix}_{name}")
        return call(self._handle, *arguments)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._call("destroy")
            self._handle = 0


class NativeResidency(_Owner):
    """`ktitan.tiers.reference.Residency` in C++."""

    def __init__(self, pool_slots: Sequence[int], record_pool: Sequence[int]) -> None:
        pools = _numbers(record_pool, c_int32)
        made = _library().kt_residency_create(_numbers(pool_slots), len(pool_slots), pools, len(record_pool))
        super().__init__("residency", made)

    @property
    def handle(self) -> int:
        """Address of the struct."""
        return self._handle

    def acquire(self, record: int) -> tuple[int, int, int]:
        """Hold a record: answer, slot, victim."""
        answer = self._call("acquire", record, self._one, self._other)
        return answer, self._one.value, self._other.value

    def has(self, record: int) -> bool:
        """Is it there, or on its way?"""
        return bool(self._call("has", record))

    def loaded(self, record: int) -> None:
        """It is filled."""
        self._call("loaded", record)

    def failed(self, record: int) -> None:
        """It cannot be filled."""
        self._call("failed", record)

    def release(self, record: int) -> None:
        """Undo one `acquire`."""
        self._call("release", record)

    def evict(self, record: int) -> bool:
        """Forget it."""
        return bool(self._call("evict", record))

    def slot(self, record: int) -> int:
        """Its slot, or -1."""
        return int(self._call("slot", record))

    def count(self) -> int:
        """Records that are there."""
        return int(self._call("count"))

    def free(self, pool: int) -> int:
        """Slots of a pool that no record has."""
        return int(self._call("free", pool))


def cycle_least(sizes: Sequence[int]) -> int:
    """Least capacity of a cycle of these records, in bytes."""
    return int(_library().kt_cycle_least(_numbers(sizes), len(sizes)))


class NativeCycle(_Owner):
    """`ktitan.tiers.reference.Cycle` in C++."""

    def __init__(self, sizes: Sequence[int], capacity: int) -> None:
        super().__init__("cycle", _library().kt_cycle_create(_numbers(sizes), len(sizes), capacity))
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
    _fields_ = (("context", c_void_p), ("copy_in", _COPY), ("copy_out", _COPY))


class _Spec(ctypes.Structure):
    _fields_ = (
        ("ram", c_void_p),
        ("pool_slots", _Ids),
        ("pool_spares", _Ids),
        ("record_pool", POINTER(c_int32)),
        ("on_drive", POINTER(c_uint8)),
        ("records", c_int64),
        ("pools", c_int32),
        ("inclusive", c_int32),
    )


class NativeVram(_Owner):
    """`ktitan.tiers.reference.Vram` in C++; `spec` and `device` are those of the reference."""

    COUNTERS = ("promotions", "demotions", "drops", "kept")

    def __init__(self, ram: NativeResidency, spec: Any, device: Any) -> None:
        self._ram, self._records = ram, len(spec.record_pool)
        # The functions live as long as the tier.
        self._device = _Device(
            None,
            _COPY(lambda _, pool, vram_slot, ram_slot: device.copy_in(pool, vram_slot, ram_slot)),
            _COPY(lambda _, pool, vram_slot, ram_slot: device.copy_out(pool, vram_slot, ram_slot)),
        )
        arrays = (_numbers(spec.pool_slots), _numbers(spec.pool_spares), _numbers(spec.record_pool, c_int32))
        on_drive = _numbers(spec.on_drive, c_uint8)
        sizes = (self._records, len(spec.pool_slots), spec.inclusive)
        struct = _Spec(ram.handle, *arrays, on_drive, *sizes)
        made = _library().kt_vram_create(ctypes.byref(struct), ctypes.byref(self._device))
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
