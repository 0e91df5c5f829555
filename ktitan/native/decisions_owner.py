"""Calls of the decisions of csrc/tiers: their signatures, and handles that are given back."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_bool, c_double, c_int32, c_int64, c_void_p
from functools import lru_cache
from typing import Any

from ktitan.errors import UnsupportedError
from ktitan.native.library import loaded

__all__ = ["COPY", "Ids", "Owner", "library", "numbers"]

Ids = POINTER(c_int64)
COPY = ctypes.CFUNCTYPE(c_bool, c_void_p, c_int32, c_int64, c_int64)
_KINDS = {
    "p": c_void_p,
    "q": c_int64,
    "d": c_double,
    "i": c_int32,
    "?": c_bool,
    "o": Ids,
    "w": POINTER(c_int32),
    "n": None,
}
# The answer, then the arguments: o and w addresses of 64-bit and 32-bit numbers, n nothing, others as in library.py.
_SIGNATURES = {
    "kt_residency_create": "pp",
    "kt_residency_destroy": "np",
    "kt_residency_step": "npq",
    "kt_residency_sequence": "np",
    "kt_residency_acquire": "ipqqp",
    "kt_residency_guess": "ipqp",
    "kt_residency_has": "?pq",
    "kt_residency_loaded": "npq",
    "kt_residency_failed": "npq",
    "kt_residency_release": "npq",
    "kt_residency_evict": "?pq",
    "kt_residency_slot": "qpq",
    "kt_residency_count": "qp",
    "kt_residency_free": "qpi",
    "kt_residency_used": "qpi",
    "kt_residency_set_policy": "npi",
    "kt_residency_pin": "?pq?",
    "kt_residency_pinned": "?pq",
    "kt_residency_seed": "npqd",
    "kt_residency_score": "dpq",
    "kt_residency_tokens": "npo",
    "kt_residency_resize": "qpooop",
    "kt_auto_create": "pp",
    "kt_auto_destroy": "np",
    "kt_auto_step": "npq",
    "kt_auto_sequence": "np",
    "kt_auto_demand": "npqooq",
    "kt_auto_seed": "npqqd?",
    "kt_auto_resize": "?poq",
    "kt_auto_policy": "ip",
    "kt_auto_rates": "npp",
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
def library() -> ctypes.CDLL:
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


def numbers(values: Sequence[int], kind: Any = c_int64) -> Any:
    """A C array of `kind`, at least one long."""
    return (kind * max(len(values), 1))(*values)


class Owner:
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
            call = self._calls[name] = getattr(library(), f"kt_{self._prefix}_{name}")
        return call(self._handle, *arguments)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._call("destroy")
            self._handle = 0
