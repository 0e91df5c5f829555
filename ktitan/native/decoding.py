"""Steps of one token each, run and chosen from in one native call (kt_program_next of csrc/program)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from ktitan.native.choosing import NativeChoice
from ktitan.native.program import NativeProgram

__all__ = ["FAILED", "NOT_READY", "UNSURE", "NativeDecoding"]

# What a step gives in place of a token: logits, but no token was chosen; nothing was run; an operation failed.
UNSURE, NOT_READY, FAILED = -1, -2, -3


class _DecodingStruct(ctypes.Structure):
    """kt_decoding."""

    _fields_ = (
        ("program", ctypes.c_void_p),
        ("pool", ctypes.c_void_p),
        ("sequence", ctypes.c_int64),
        ("tables", ctypes.c_void_p),
        ("positions", ctypes.c_int64),
        ("buffers", ctypes.c_void_p),
        ("logits", ctypes.c_void_p),
        ("vocabulary", ctypes.c_int64),
        ("choice", ctypes.c_void_p),
    )


class NativeDecoding:
    """A kt_decoding; it holds what it points to, but for the pool.

    Args:
        program: of native operations alone, without stores.
        buffers: the values of one token by number, [width] each; None: the value lies nowhere.
        logits: the one of them that tokens are chosen from, float32 [V].
        choice: how; None: the caller chooses.
    """

    def __init__(
        self,
        program: NativeProgram,
        buffers: Sequence[torch.Tensor | None],
        logits: torch.Tensor,
        choice: NativeChoice | None,
    ) -> None:
        self._held = (program, buffers, choice)
        self._logits, self._run = logits, program.next
        self._tables: Sequence[torch.Tensor] = ()
        self._buffers = _addresses(buffers)
        self._token = ctypes.c_int64()
        self._token_place = ctypes.byref(self._token)
        self._struct = _DecodingStruct(program=program.address, buffers=ctypes.addressof(self._buffers))
        self._struct.logits, self._struct.vocabulary = logits.data_ptr(), logits.numel()
        self._struct.choice = None if choice is None else choice.address
        self._address = ctypes.addressof(self._struct)

    def place(self, pool: int, sequence: int, tables: Sequence[torch.Tensor], positions: int) -> None:
        """The sequence, of the kt_pool at address `pool`, and tables [P, width] of positions, P >= `positions`."""
        self._tables, self._starts = tables, _addresses(tables)
        struct = self._struct
        struct.pool, struct.sequence, struct.positions = pool, sequence, positions
        struct.tables = ctypes.addressof(self._starts)

    def next(self, token: int, seen: int, uniform: float) -> int:
        """Run `token` at position `seen`; the one chosen behind it, or UNSURE, NOT_READY or FAILED."""
        status = self._run(self._address, token, seen, uniform, self._token_place)
        if status == 0:
            return self._token.value
        return status if status < 0 else FAILED


def _addresses(tensors: Sequence[torch.Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * max(1, len(tensors)))(*(None if one is None else one.data_ptr() for one in tensors))
