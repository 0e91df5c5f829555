"""The native KV pool: one method for each of its functions in csrc/program/ktitan_program.h."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import NamedTuple

from ktitan.errors import HardwareError, UnsupportedError
from ktitan.native.library import loaded

__all__ = ["NativePool", "PoolCounts", "PoolLayer"]

# enum kt_status and its further values.
_OK, _NO_MEMORY, _WRONG_SIZE, _FULL = 0, 1, 4, 16

_Integers = ctypes.Array[ctypes.c_int64]


class PoolLayer(ctypes.Structure):
    """kt_kv_layer: heads and widths of keys and values, and the number of a format."""

    _fields_ = (
        ("key_heads", ctypes.c_int64),
        ("key_dim", ctypes.c_int64),
        ("value_heads", ctypes.c_int64),
        ("value_dim", ctypes.c_int64),
        ("format", ctypes.c_int32),
    )


class PoolCounts(NamedTuple):
    """kt_pool_counts."""

    pages: int
    free_pages: int
    page_bytes: int
    allocated_bytes: int
    used_bytes: int
    missing_bytes: int


class NativePool:
    """Pages of 64 tokens in native memory, which goes with the last reference to this object.

    Any thread may call. Limits are bytes of the whole pool, None for none. Where nothing else is said, sequences exist
    and layers are declared: who calls has checked that.

    Attributes:
        address: the kt_pool, for other native calls.

    Raises:
        HardwareError: there is no native library, or no memory.
    """

    def __init__(self, address: int | None = None) -> None:
        self._library = loaded()
        self.address: int = _made(self._library.kt_pool_open() if address is None else address)
        self._close = weakref.finalize(self, self._library.kt_pool_close, self.address)
        self._close.atexit = False  # other threads may still compute

    def copy(self) -> NativePool:
        """A pool of its own with the same sequences, pages and numbers."""
        return NativePool(_made(self._library.kt_pool_copy(self.address)))

    def counts(self) -> PoolCounts:
        """Pages and bytes now."""
        numbers = (ctypes.c_int64 * len(PoolCounts._fields))()
        self._library.kt_pool_count(self.address, numbers)
        return PoolCounts(*numbers)

    def declare(self, layer: int, what: PoolLayer, limit: int | None) -> bool:
        """A new layer; False when it does not fit below the limit."""
        status = self._library.kt_pool_declare(self.address, layer, ctypes.addressof(what), _number(limit))
        return self._fits(status)

    def undeclare(self, layer: int) -> None:
        """Forget a layer that holds no tokens."""
        self._fits(self._library.kt_pool_declare(self.address, layer, None, -1))

    def new_sequence(self) -> int:
        """The id of an empty sequence."""
        return _made(self._library.kt_pool_sequence(self.address))

    def fork(self, sequence: int) -> int:
        """The id of a sequence that shares all pages of another."""
        return _made(self._library.kt_pool_fork(self.address, sequence))

    def free(self, sequence: int) -> None:
        """Forget a sequence."""
        self._fits(self._library.kt_pool_free(self.address, sequence))

    def crop(self, sequence: int, length: int) -> None:
        """Keep the first `length` tokens, 0 or more, in every layer."""
        self._fits(self._library.kt_pool_crop(self.address, sequence, length))

    def length(self, layer: int, sequence: int) -> int:
        """Tokens that a layer holds; 0 for one that has none, -1 for an unknown sequence."""
        return int(self._library.kt_pool_length(self.address, layer, sequence))

    def table(self, sequence: int) -> tuple[int, ...] | None:
        """The page numbers, in order; None for an unknown sequence."""
        count = self._library.kt_pool_table(self.address, sequence, None, 0)
        if count < 0:
            return None
        pages = (ctypes.c_int64 * count)()
        self._library.kt_pool_table(self.address, sequence, pages, count)
        return tuple(pages)

    def reserve(self, sequences: Sequence[int], tokens: Sequence[int], limit: int | None) -> bool:
        """Own pages for tokens to come; False when they do not fit below the limit, and nothing has changed."""
        status = self._library.kt_pool_reserve(
            self.address, _integers(sequences), _integers(tokens), len(sequences), _number(limit)
        )
        return self._fits(status)

    def append(
        self,
        layer: int,
        sequences: Sequence[int],
        tokens: Sequence[int],
        places: tuple[int, int],
        limit: int | None,
    ) -> bool:
        """Write tokens from the addresses of packed float32 rows, keys and values; False as in `reserve`."""
        status = self._library.kt_pool_append(
            self.address, layer, _integers(sequences), _integers(tokens), len(sequences), *places, _number(limit)
        )
        return self._fits(status)

    def read(self, layer: int, sequence: int, first: int, count: int, keys: int, values: int) -> None:
        """Tokens [first, first + count) to packed rows [count, heads, dim]."""
        self._fits(self._library.kt_pool_read(self.address, layer, sequence, first, count, keys, values))

    def gather(self, layer: int, sequences: Sequence[int], length: int, keys: int, values: int) -> None:
        """All `length` tokens of each sequence to tensors [B, heads, length, dim]."""
        self._fits(
            self._library.kt_pool_gather(
                self.address, layer, _integers(sequences), len(sequences), length, keys, values
            )
        )

    def trim(self, limit: int) -> int:
        """Give free pages back until at most `limit` bytes are left; what is left."""
        return int(self._library.kt_pool_trim(self.address, limit))

    def _fits(self, status: int) -> bool:
        if status == _OK:
            return True
        if status == _FULL:
            return False
        if status == _NO_MEMORY:
            raise _no_memory()
        if status == _WRONG_SIZE:
            raise UnsupportedError(
                "numbers of tokens below 0, or more than a sequence can have", "KV pool", "give 0 to 2^31 tokens"
            )
        raise HardwareError(
            f"the native library refused a call of the KV pool (status {status})",
            remedy="reinstall ktitan; its parts differ",
        )


def _integers(numbers: Sequence[int]) -> _Integers:
    return (ctypes.c_int64 * len(numbers))(*numbers)


def _number(limit: int | None) -> int:
    return -1 if limit is None else limit


def _made(result: int | None) -> int:
    """An address or a number that is no failure: there is one reason for those."""
    if result is None or result < 0:
        raise _no_memory()
    return result


def _no_memory() -> HardwareError:
    return HardwareError(
        "no memory for pages of keys and values", "KV pool", "free memory, use a shorter prompt or a smaller batch"
    )
