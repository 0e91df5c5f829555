"""What a store is told of earlier sessions at its start, and can tell of its own (csrc/tiers/store_profile.cpp)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ktitan.native.library import loaded
from ktitan.native.store import IO_FAILED, NativeStore

__all__ = ["record_tokens", "seed_records", "warm_records"]


def seed_records(store: NativeStore, records: Sequence[int], tokens: Sequence[float], pinned: Sequence[bool]) -> None:
    """Say what records count for at the start, in tokens, and which the policy with pins keeps.

    Raises:
        UnsupportedError: the store is not open.
    """
    with store.opened() as address:
        for record, worth, stays in zip(records, tokens, pinned, strict=True):
            loaded().kt_store_seed(address, record, worth, int(stays))


def warm_records(store: NativeStore, records: Sequence[int]) -> None:
    """Read records into free slots; those without one are left out.

    Raises:
        IoError: a read failed.
        UnsupportedError: the store is not open.
    """
    numbers = np.array(records, np.int64)
    with store.opened() as address:
        status = loaded().kt_store_warm(address, numbers.ctypes.data, len(numbers))
    if status == IO_FAILED:
        store.raise_fault()


def record_tokens(store: NativeStore, records: int) -> np.ndarray:
    """Tokens that chose each of the store's `records` records since it was opened, int64; waits for no call.

    Raises:
        UnsupportedError: the store is not open.
    """
    tokens = np.zeros(records, np.int64)
    with store.opened() as address:
        loaded().kt_store_tokens(address, tokens.ctypes.data)
    return tokens
