"""A program that runs: its memory, its native parts, and the modules that are called between them."""

from __future__ import annotations

import threading
import weakref
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from ktitan.context import step
from ktitan.errors import UnsupportedError
from ktitan.native.choosing import NativeChoice
from ktitan.native.program import NativeProgram, Operation, Step
from ktitan.program.decoding import Decoding
from ktitan.program.draft import Call
from ktitan.program.memory import Placed, place
from ktitan.program.model import Drafted
from ktitan.program.text import program_text
from ktitan.program.traced import Called, arguments_of, tensors_in

__all__ = ["StepProgram"]

# Memory of longer steps is given back at the first step of one token.
_KEPT_TOKENS = 16


@dataclass(frozen=True)
class _Part:
    """Operations [first, last) of the native program, or a call."""

    first: int
    last: int
    call: Call | None = None


class StepProgram:
    """Steps of one sequence by an injected model. Any thread may call; one step runs at a time.

    Args:
        drafted: the program.

    Attributes:
        reasons: why modules are called in Python, by path.
    """

    def __init__(self, drafted: Drafted) -> None:
        self._drafted = drafted
        self._logits = drafted.logits
        self._placed: Placed = place(drafted.draft, drafted.logits.buffer)
        self._parts = _parts(self._placed)
        operations = [item for item in self._placed.items if isinstance(item, Operation)]
        self.native = NativeProgram(operations, drafted.draft.values, drafted.tables.widths)
        self._step = Step(self.native)
        self._slots: list[torch.Tensor] = []
        self._room = 0
        self._pool: Any = None  # a weak reference to the pool that knows the layers
        self._one_at_a_time = threading.Lock()  # the values of a step lie in the program's own memory
        self._calls = [item for item in self._placed.items if isinstance(item, Call)]
        self._asks = any(call.extra is not None and call.extra.layer is not None for call in self._calls)
        self._is_native = not self._calls and not self.native.stores
        self.reasons = {call.path: call.reason for call in self._calls}

    @property
    def lowered(self) -> int:
        """Modules that are operations."""
        return len(self._drafted.builder.lowered)

    def text(self) -> str:
        """One line an operation: path, kind, values with their widths, format."""
        return program_text(self._placed, self._drafted.draft.values, self._logits.buffer)

    def workspace_bytes(self, tokens: int) -> int:
        """Memory for the values of a step of so many tokens."""
        return sum(
            (8 if slot.is_index else 4) * slot.width * (1 if slot.by_sequence else tokens)
            for slot in self._placed.slots
        )

    def decoding(self, cache: Any, choice: NativeChoice | None) -> Decoding | None:
        """Steps of one token each of the sequence of `cache`, each one call; None where modules or stores take part."""
        if not self._is_native or len(cache.sequences) != 1:
            return None
        with self._one_at_a_time:
            self._declare(cache.pool)
            if self._room > _KEPT_TOKENS:
                self._slots, self._room = [], 0
        logits = (self._logits.buffer, self._logits.width)
        return Decoding(self.native, self._drafted.tables, self._placed, logits, cache, choice)

    def run(self, ids: torch.Tensor, cache: Any) -> torch.Tensor:
        """ids int64 [T], T from 1 on -> the logits [1, V] after the last of them, float32.

        Args:
            ids: the next tokens.
            cache: a `KtitanCache` of one row, or empty, on a `NativeKVPool`; it holds the T tokens afterwards.

        Raises:
            BudgetError, UnsupportedError, IoError, HardwareError: as the model's own forward; the cache is as it was.
        """
        ids = self._checked(ids, cache)
        with self._one_at_a_time:
            return self._run(ids, cache)

    def _run(self, ids: torch.Tensor, cache: Any) -> torch.Tensor:
        tokens, start = ids.shape[0], int(cache.get_seq_length())
        self._declare(cache.pool)
        context = self._reserved(cache, tokens)
        try:
            logits = self._prepared(ids, start, cache)
            if self._is_native:
                self.native.run(self._step, 0, self._parts[0].last)
            else:
                self._run_parts(ids, start, cache, context, logits)
        except BaseException:
            if start:
                cache.crop(start)
            else:
                cache.reset()
            raise
        return logits

    def _reserved(self, cache: Any, tokens: int) -> Any:
        """Pages for the step, and its context where modules are called."""
        if not cache.sequences or self._calls:
            return cache.step_context(tokens)
        cache.pool.reserve(cache.sequences, (tokens,))
        return None

    def _prepared(self, ids: torch.Tensor, start: int, cache: Any) -> torch.Tensor:
        """Set the step up; room for its logits."""
        tokens = ids.shape[0]
        self._make_room(tokens)
        for number, address in enumerate(self._drafted.tables.addresses(start, start + tokens)):
            self._step.place_table(number, address)
        logits = torch.empty((1, self._logits.width))
        self._step.place_buffer(self._logits.buffer, logits.data_ptr())
        self._step.set(ids, cache.sequences[0], cache.pool.native.address)
        return logits

    def _run_parts(self, ids: torch.Tensor, start: int, cache: Any, context: Any, logits: torch.Tensor) -> None:
        """Native parts and calls in turn, with the stores open."""
        with ExitStack() as stack:
            self.native.open(stack)
            if self._calls:
                stack.enter_context(torch.inference_mode())
                stack.enter_context(step(context))
            asked = self._layer_calls(ids, start, cache) if self._asks else {}
            for part in self._parts:
                if part.call is None:
                    self.native.run(self._step, part.first, part.last)
                else:
                    self._call(part.call, ids, asked, logits)

    def _checked(self, ids: torch.Tensor, cache: Any) -> torch.Tensor:
        if ids.dim() != 1 or not ids.shape[0] or ids.dtype is not torch.int64 or not ids.is_cpu:
            raise UnsupportedError(
                f"ids are {ids.dtype} {list(ids.shape)} on {ids.device}", "ids", "give int64 [T] on the CPU"
            )
        if getattr(cache.pool, "native", None) is None:
            raise UnsupportedError(
                f"a program writes to native pages, the cache has a {type(cache.pool).__name__}",
                "cache",
                "make it with ktitan.new_cache(model)",
            )
        if len(cache.sequences) > 1:
            raise UnsupportedError(f"the cache has {len(cache.sequences)} rows", "cache", "call the model for batches")
        return ids.contiguous()

    def _declare(self, pool: Any) -> None:
        if self._pool is None or self._pool() is not pool:
            for layer, spec in self._drafted.builder.specs.items():
                pool.declare(layer, spec)
            self._pool = weakref.ref(pool)

    def _make_room(self, tokens: int) -> None:
        if tokens <= self._room and not (tokens == 1 and self._room > _KEPT_TOKENS):
            return
        self._slots = []
        self._slots = [
            torch.empty(
                slot.width * (1 if slot.by_sequence else tokens), dtype=torch.int64 if slot.is_index else torch.float32
            )
            for slot in self._placed.slots
        ]
        self._room = tokens
        for value, slot in enumerate(self._placed.slot_of):
            if slot >= 0:
                self._step.place_buffer(value, self._slots[slot].data_ptr())

    def _layer_calls(self, ids: torch.Tensor, start: int, cache: Any) -> dict[int, Called]:
        """How the stock model would call its layers in this step."""
        trace = self._drafted.trace
        return trace.layer_calls(trace.run(ids, start, cache)[0])

    def _view(self, value: int, tokens: int, logits: torch.Tensor) -> torch.Tensor:
        """[rows, width] of a value."""
        buffer = self._drafted.draft.values[value]
        if value == self._logits.buffer:
            return logits
        rows = 1 if buffer.by_sequence else tokens
        return self._slots[self._placed.slot_of[value]][: rows * buffer.width].view(rows, buffer.width)

    def _call(self, call: Call, ids: torch.Tensor, asked: dict[int, Called], logits: torch.Tensor) -> None:
        views = [self._view(value, len(ids), logits) for value in call.inputs]
        inputs = views if len(views) > 1 else [one[None] for one in views or [ids]]
        returned = call.module(*inputs, **_further(call, asked))
        made = next(tensors_in(returned), None)
        out = self._view(call.output, len(ids), logits)
        if made is None or made.numel() != out.numel() or not made.is_floating_point():
            found = type(returned).__name__ if made is None else f"{made.dtype} {list(made.shape)}"
            raise UnsupportedError(
                f"the module returned {found} in place of {list(out.shape)}", call.path, "check the module"
            )
        out.copy_(made.reshape(out.shape))


def _further(call: Call, asked: dict[int, Called]) -> dict[str, Any]:
    extra = call.extra
    if extra is None:
        return {}
    if extra.layer is None:
        return dict(extra.constant)
    layer = asked[extra.layer]
    names = arguments_of(layer.module, layer.args, layer.kwargs)
    return {**extra.constant, **{mine: names[theirs] for mine, theirs in extra.shared.items()}}


def _parts(placed: Placed) -> list[_Part]:
    """Native stretches and the calls between them; operations are numbered without the calls."""
    parts: list[_Part] = []
    first = at = 0
    for item in placed.items:
        if isinstance(item, Operation):
            at += 1
            continue
        if at > first:
            parts.append(_Part(first, at))
        parts.append(_Part(at, at, item))
        first = at
    if at > first:
        parts.append(_Part(first, at))
    return parts
