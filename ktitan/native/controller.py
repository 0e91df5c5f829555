"""The controller of csrc/tiers/controller.h by itself, with the methods of ktitan/tiers/reference/controller.py."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

from ktitan.errors import HardwareError
from ktitan.native.library import loaded
from ktitan.native.store import PREFETCH

__all__ = ["NativeController", "native_guess_fits"]

_NUMBER, _ADDRESS = ctypes.c_int64, ctypes.c_void_p


class _Step(ctypes.Structure):
    """kt_guess_step."""

    _fields_ = tuple((name, _NUMBER) for name in ("wall_ns", "stall_ns", "overhead_ns", "idle_ns", "tokens"))


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    handle = loaded()
    signatures = {
        "controller_create": (_ADDRESS, (ctypes.c_int32, _NUMBER)),
        "controller_destroy": (None, (_ADDRESS,)),
        "controller_step": (_NUMBER, (_ADDRESS, _ADDRESS)),
        "controller_level": (_NUMBER, (_ADDRESS,)),
        "controller_gain": (_NUMBER, (_ADDRESS,)),
        "guess_fits": (ctypes.c_bool, (_NUMBER, _NUMBER, _NUMBER)),
    }
    for name, (answer, arguments) in signatures.items():
        function = getattr(handle, f"kt_{name}")
        function.restype, function.argtypes = answer, arguments
    return handle


def native_guess_fits(room_ns: int, read_ns: int, right: int) -> bool:
    """`ktitan.tiers.reference.guess_fits` in C++."""
    return bool(_library().kt_guess_fits(room_ns, read_ns, right))


class NativeController:
    """`ktitan.tiers.reference.Controller` in C++.

    Raises:
        HardwareError: there is no library, or no memory.
    """

    def __init__(self, mode: str, full: int) -> None:
        self._handle = _library().kt_controller_create(PREFETCH.index(mode), full)
        if not self._handle:
            raise HardwareError("no memory for a controller of reading ahead", remedy="free memory")

    def step(self, step: Any) -> int:
        """Note a step; the level of the next one."""
        struct = _Step(step.wall_ns, step.stall_ns, step.overhead_ns, step.idle_ns, step.tokens)
        return int(_library().kt_controller_step(self._handle, ctypes.byref(struct)))

    @property
    def level(self) -> int:
        """Guesses that a call may make now."""
        return int(_library().kt_controller_level(self._handle))

    @property
    def gain(self) -> int:
        """What guesses saved in a step, in ns."""
        return int(_library().kt_controller_gain(self._handle))

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            _library().kt_controller_destroy(self._handle)
            self._handle = None
