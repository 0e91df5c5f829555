"""CRC-32C (Castagnoli, RFC 3720 appendix B.4): the checksum of Titan Native's records."""

from __future__ import annotations

import numpy as np

from ktitan.native.library import loaded

__all__ = ["crc32c"]


def crc32c(data: bytes | bytearray | memoryview | np.ndarray, crc: int = 0) -> int:
    """The checksum of `data`'s bytes, continuing `crc`; other threads run meanwhile.

    Raises:
        HardwareError: the native library is not there; in Python it would take minutes a gigabyte.
    """
    view = np.frombuffer(data, np.uint8) if not isinstance(data, np.ndarray) else np.ascontiguousarray(data)
    found: int = loaded().kt_crc32c(crc, view.ctypes.data, view.nbytes)
    return found & 0xFFFFFFFF
