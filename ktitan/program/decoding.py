"""The steps of one token each that follow a prompt: one native call for a step and the choice of the next token."""

from __future__ import annotations

from typing import Any

import torch

from ktitan.native.choosing import NativeChoice
from ktitan.native.decoding import FAILED, NOT_READY, NativeDecoding
from ktitan.native.program import NativeProgram
from ktitan.program.memory import Placed
from ktitan.program.positions import PositionTables

__all__ = ["Decoding"]


class Decoding:
    """One sequence behind its first token in steps of one token, with memory of its own: other steps of the program do
    not disturb it.

    Args:
        native: the program, whose operations are all native and read no store.
        tables: its tables of positions.
        placed: where its values lie.
        logits: the number of the value [V] that tokens are chosen from, and V.
        cache: a `KtitanCache` of one row on a `NativeKVPool`.
        choice: how tokens are chosen; None: by the caller.

    Attributes:
        logits: float32 [1, V] of the last step.
    """

    def __init__(
        self,
        native: NativeProgram,
        tables: PositionTables,
        placed: Placed,
        logits: tuple[int, int],
        cache: Any,
        choice: NativeChoice | None,
    ) -> None:
        number, width = logits
        self.logits = torch.empty(1, width)
        self._cache, self._tables = cache, tables
        slots = [torch.empty(one.width, dtype=torch.int64 if one.is_index else torch.float32) for one in placed.slots]
        values = [slots[slot] if slot >= 0 else None for slot in placed.slot_of]
        values[number] = self.logits
        self._native = NativeDecoding(native, values, self.logits, choice)
        self.refresh()

    def refresh(self) -> None:
        """Look again at what a step outside may have changed: the sequence, and the tables of positions."""
        sequences = self._cache.sequences
        sequence = sequences[0] if len(sequences) == 1 else -1
        self._native.place(self._cache.pool.native.address, sequence, self._tables.numbers(), self._tables.positions)

    def next(self, token: int, seen: int, uniform: float) -> int:
        """Run `token`, which stands at position `seen` from 1 on, and choose the one behind it; or a number below 0.

        UNSURE: it was run, and its `logits` are to be chosen from. NOT_READY: nothing was run, as the cache does not
        hold `seen` tokens, needs a page, or the step failed: `StepProgram.run` makes room, or says why not.
        """
        chosen = self._native.next(token, seen, uniform)
        if chosen == FAILED:
            self._cache.crop(seen)
            return NOT_READY
        return chosen
