"""What both users of the reader in csrc/tiers share: its structures, its modes, and what its faults mean (io.h)."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Any, Protocol

from ktitan.errors import Fault, IoError
from ktitan.native.io_uring import io_uring_fault

__all__ = ["MODES", "CountedStruct", "IoCounters", "Stamp", "StampStruct", "fault_of_add", "no_ring", "read_fault"]

# enum kt_io_mode and enum kt_io_fault.
MODES = {"auto": 0, "io_uring": 1, "threads": 2}
_SHORT, _CHANGED = -1, -2
# kt_io_add gives -errno, or an enum kt_io_fault less this.
_ADD_BASE = 1000

_REMEDY = "put the same file back, or load the model again"


class Stamp(Protocol):
    """What a file was when its header was read, as `ktitan.weights.FileStamp`."""

    @property
    def device(self) -> int:
        """Number of its drive."""

    @property
    def inode(self) -> int:
        """Its number there."""

    @property
    def size(self) -> int:
        """Its bytes."""

    @property
    def modified_ns(self) -> int:
        """Time of change."""


class StampStruct(ctypes.Structure):
    """kt_stamp."""

    _fields_ = (
        ("device", ctypes.c_uint64),
        ("inode", ctypes.c_uint64),
        ("bytes", ctypes.c_int64),
        ("modified_ns", ctypes.c_int64),
    )

    @classmethod
    def pointer(cls, stamp: Stamp | None) -> Any:
        """A pointer for a call; null for a file that is taken as it is."""
        if stamp is None:
            return None
        return ctypes.byref(cls(stamp.device, stamp.inode, stamp.size, stamp.modified_ns))


class CountedStruct(ctypes.Structure):
    """A structure of numbers that reads as a dict."""

    def as_dict(self) -> dict[str, Any]:
        """Its numbers by name."""
        values = ((name, getattr(self, name)) for name, *_ in self._fields_)
        return {name: value.as_dict() if isinstance(value, CountedStruct) else value for name, value in values}


class IoCounters(CountedStruct):
    """kt_io_counters."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("reads", "read_bytes", "wanted_bytes", "busy_ns", "wait_ns")),
        *((name, ctypes.c_int32) for name in ("uring", "registered", "direct_files", "files")),
    )


def read_fault(error: int, where: str) -> Fault:
    """What a failed read means; `error` is an errno or an enum kt_io_fault, `where` names the file first."""
    if error == _SHORT:
        return Fault("the file ends early: it was cut since its header was read", where, _REMEDY)
    if error == _CHANGED:
        return Fault("the file was replaced or changed since its header was read", where, _REMEDY)
    return IoError.of(OSError(error, os.strerror(error)), "stored weights cannot be read", where).faults[0]


def fault_of_add(number: int) -> int:
    """The errno or enum kt_io_fault in a negative answer of kt_io_add."""
    return -number if number > -_ADD_BASE // 2 else number + _ADD_BASE


def no_ring() -> str:
    """Why io_uring is refused, for people."""
    return f"io_uring is refused here: {os.strerror(io_uring_fault() or errno.ENOSYS)}"
