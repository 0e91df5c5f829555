"""The builder that operators append themselves to (`ktitan.lowering.Builder`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ktitan.context import KVLayerSpec
from ktitan.errors import UnsupportedError
from ktitan.lowering import Builder, Routed, Value
from ktitan.native import ExpertBank, PackedMatrix
from ktitan.native.bank import ACTIVATIONS
from ktitan.native.program import Buffer, Operation
from ktitan.native.program_structs import Foreseen, Norm
from ktitan.native.streams import StreamBank, StreamMatrix, StreamTable
from ktitan.program.draft import Call, Draft, Extra
from ktitan.program.lowered import lowered_hooks, refusal
from ktitan.program.positions import PositionTables

__all__ = ["ProgramBuilder"]


class ProgramBuilder(Builder):
    """Writes a draft.

    Args:
        paths: of the model's modules, by id.
        tables: the tables of positions.

    Attributes:
        draft: what is written.
        specs: what each layer of the KV pool stores, by number.
        lowered: modules that became operations.
    """

    def __init__(self, paths: Mapping[int, str], tables: PositionTables) -> None:
        self.draft = Draft()
        self.specs: dict[int, KVLayerSpec] = {}
        self.lowered: list[nn.Module] = []
        self._paths = paths
        self._tables = tables
        self._at: list[str] = [""]
        self._extra: dict[int, Extra | None] = {}

    @contextmanager
    def giving(self, module: nn.Module, extra: Extra | None) -> Iterator[None]:
        """While the block runs, a call of `module` in Python gets these arguments, too; None: they are not known."""
        self._extra[id(module)] = extra
        try:
            yield
        finally:
            del self._extra[id(module)]

    def module(self, module: nn.Module, *inputs: Value, width: int) -> Value:
        """See `Builder.module`."""
        reason = refusal(module)
        if reason is not None:
            return self.call(module, *inputs, width=width, reason=reason)
        before = self.mark()
        try:
            with self.inside(module):
                for hook in lowered_hooks(module):
                    hook.lower(self, *inputs)
                lower: Any = module.lower
                made = lower(self, *inputs)
                self.lowered.append(module)
        except UnsupportedError as error:
            made, reason = None, error.message
        if isinstance(made, Value) and made.width == width:
            return made
        self.rewind(before)
        return self.call(module, *inputs, width=width, reason=reason or "its program form has another width")

    def mark(self) -> tuple[Any, ...]:
        """What is written so far, for `rewind`."""
        return self.draft.mark(), len(self.lowered), dict(self.specs)

    def rewind(self, mark: tuple[Any, ...]) -> None:
        """Strike what was written since."""
        draft, lowered, self.specs = mark
        self.draft.rewind(draft)
        del self.lowered[lowered:]

    def call(self, module: nn.Module, *inputs: Value, width: int, reason: str) -> Value:
        """A call of the module in Python: [T, width]."""
        out = self._value(width, like=inputs[0] if inputs else None)
        numbers = tuple(one.buffer for one in inputs)
        extra = self._extra.get(id(module), Extra())
        self.draft.items.append(Call(module, numbers, out.buffer, self._path(module), reason, extra))
        return out

    def rows(self, table: Any, factor: float = 1.0) -> Value:
        """See `Builder.rows`."""
        kind = "stream_rows" if isinstance(table, StreamTable) else "rows"
        return self._append(kind, (), int(table.columns), what=table, factor=factor)

    def norm(self, x: Value, weight: torch.Tensor | None, eps: float, unit_offset: bool = False) -> Value:
        """See `Builder.norm`."""
        width = x.width if weight is None else len(weight)
        return self._append("norm", (x,), x.width, what=Norm(weight, width, eps, unit_offset))

    def linear(
        self, x: Value, weight: PackedMatrix | Any, bias: torch.Tensor | None, activations: str, order: Any = None
    ) -> Value:
        """See `Builder.linear`."""
        kind = "stream_linear" if isinstance(weight, StreamMatrix) else "linear"
        out = self._append(kind, (x,), weight.rows, what=weight, bias=bias, activations=activations)
        if order is None:
            return out
        return self._append("order", (out,), out.width, what=torch.as_tensor(order, dtype=torch.int64).contiguous())

    def heads(self, x: Value, weight: PackedMatrix, heads: int) -> Value:
        """See `Builder.heads`."""
        return self._append("heads", (x,), weight.rows, what=weight, numbers=(heads,))

    def rotate(self, x: Value, rotation: Any, heads: int, layer: Any) -> Value:
        """See `Builder.rotate`; the module has `turning`, which makes a table of what the stock model hands it."""
        table = self._tables.number(layer, rotation.turned)
        out = self.columns(x, 0, x.width, 1, whole=True)
        numbers = (heads, table)
        # In place: what is turned is read and written.
        self._write(Operation("rotate", (out.buffer,), (out.buffer,), self._at[-1], rotation, numbers=numbers))
        return out

    def columns(self, x: Value, first: int, count: int, groups: int = 1, *, whole: bool = False) -> Value:
        """See `Builder.columns`. `whole`: a copy also where all columns are taken."""
        if count * groups == x.width and not whole:
            return x
        return self._append("copy", (x,), count * groups, numbers=(first, 0, count, groups))

    def joined(self, parts: tuple[Value, ...], groups: int = 1) -> Value:
        """See `Builder.joined`."""
        if len(parts) == 1:
            return parts[0]
        out, at = self._value(sum(part.width for part in parts), like=parts[0]), 0
        for part in parts:
            count = part.width // groups
            numbers = (0, at, count, groups)
            self._write(Operation("copy", (part.buffer,), (out.buffer,), self._at[-1], numbers=numbers))
            at += count
        return out

    def append(self, layer: int, keys: Value, values: Value, spec: Any) -> None:
        """See `Builder.append`."""
        self.specs[layer] = spec
        self._write(Operation("append", (keys.buffer, values.buffer), (), self._at[-1], numbers=(layer,)))

    def attend(self, layer: int, query: Value, attention: Any) -> Value:
        """See `Builder.attend`."""
        width = attention.heads * (attention.key_dim if attention.latent else attention.value_dim)
        return self._append("attend", (query,), width, what=attention, numbers=(layer,))

    def activate(self, name: str, gate: Value, up: Value | None) -> Value:
        """See `Builder.activate`."""
        inputs = (gate,) if up is None else (gate, up)
        return self._append("activate", inputs, gate.width, numbers=(ACTIVATIONS.index(name),))

    def add(self, a: Value, b: Value) -> Value:
        """See `Builder.add`."""
        return self._append("add", (a, b), a.width)

    def scale(self, x: Value, factor: float) -> Value:
        """See `Builder.scale`."""
        return self._append("scale", (x,), x.width, factor=factor)

    def gate(self, x: Value, scores: Value) -> Value:
        """See `Builder.gate`."""
        return self._append("gate", (x, scores), x.width)

    def route(self, x: Value, router: Any) -> Routed:
        """See `Builder.route`."""
        index = Value(self.draft.value(Buffer(router.chosen, is_index=True)), router.chosen)
        weights = self._value(router.chosen)
        outputs = (index.buffer, weights.buffer)
        self._write(Operation("route", (x.buffer,), outputs, self._at[-1], router))
        return Routed(index, weights, router.chosen)

    def experts(self, x: Value, routed: Routed, bank: ExpertBank | Any, activations: str) -> Value:
        """See `Builder.experts`."""
        kind = "stream_experts" if isinstance(bank, StreamBank) else "experts"
        inputs = (x, routed.index, routed.weights)
        return self._append(kind, inputs, bank.hidden, what=bank, activations=activations, numbers=(routed.chosen,))

    def foresee(self, x: Value, store: Any, predictor: Any) -> None:
        """See `Builder.foresee`."""
        self._write(Operation("foresee", (x.buffer,), (), self._at[-1], Foreseen(store, predictor)))

    def last(self, x: Value) -> Value:
        """The last token of each sequence."""
        out = Value(self.draft.value(Buffer(x.width, by_sequence=True)), x.width)
        self._write(Operation("last", (x.buffer,), (out.buffer,), self._at[-1]))
        return out

    def _append(self, kind: str, inputs: tuple[Value, ...], width: int, **rest: Any) -> Value:
        out = self._value(width, like=inputs[0] if inputs else None)
        self._write(Operation(kind, tuple(one.buffer for one in inputs), (out.buffer,), self._at[-1], **rest))
        return out

    def _value(self, width: int, like: Value | None = None) -> Value:
        by_sequence = like is not None and self.draft.values[like.buffer].by_sequence
        return Value(self.draft.value(Buffer(width, by_sequence=by_sequence)), width)

    def _write(self, operation: Operation) -> None:
        self.draft.items.append(operation)

    def _path(self, module: nn.Module) -> str:
        return self._paths.get(id(module), type(module).__name__)

    @contextmanager
    def inside(self, module: nn.Module) -> Iterator[None]:
        """What is written while the block runs belongs to `module`."""
        self._at.append(self._path(module))
        try:
            yield
        finally:
            self._at.pop()
