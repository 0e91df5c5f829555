"""A whole model as a program: embedding, decoder layers, final norm, head, as its own forward calls them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ktitan.errors import UnsupportedError
from ktitan.lowering import Value
from ktitan.operator import probing
from ktitan.program.builder import ProgramBuilder
from ktitan.program.draft import Call, Draft, Extra
from ktitan.program.lowered import hook_reason, refusal
from ktitan.program.positions import PositionSource, PositionTables, length_reason
from ktitan.program.schema import Answers, ChildCall, Schema, layer_schema, solve_calls
from ktitan.program.trace import ModelTrace
from ktitan.program.traced import Called, arguments_of, tensors_in
from ktitan.shells import PROBE_FAULTS

__all__ = ["Drafted", "draft_model"]

_TOKENS = 3
_AS_MODULES = "run it as modules"


@dataclass(frozen=True)
class Drafted:
    """A draft and what it was made with.

    Attributes:
        draft: operations and calls.
        builder: what wrote it.
        tables: the tables of positions.
        trace: how the stock model calls its layers.
        logits: the value with the logits, one row a sequence.
    """

    draft: Draft
    builder: ProgramBuilder
    tables: PositionTables
    trace: ModelTrace
    logits: Value


def draft_model(model: Any, cache: Any) -> Drafted:
    """The program of a model, as its own forwards say.

    Args:
        model: injected, in float32 on the CPU.
        cache: an empty one.

    Raises:
        UnsupportedError: what stands around the decoder layers cannot be told.
    """
    trace = ModelTrace(model)
    _refuse_hooks(trace)
    tables = PositionTables()
    builder = ProgramBuilder({id(module): path for path, module in model.named_modules()}, tables)
    writer = _Writer(model, trace, builder, tables)
    return Drafted(builder.draft, builder, tables, trace, writer.write(cache))


def _refuse_hooks(trace: ModelTrace) -> None:
    for module in trace.around:
        reason = hook_reason(module)
        if reason is not None:
            raise UnsupportedError(reason, type(module).__name__, _AS_MODULES)


class _Unsolved(Exception):
    """A child must be called with arguments that are not known."""


class _Writer:
    """Writes one model down."""

    def __init__(self, model: Any, trace: ModelTrace, builder: ProgramBuilder, tables: PositionTables) -> None:
        self.model = model
        self.trace = trace
        self.builder = builder
        self.tables = tables
        self.sources: dict[int, PositionSource] = {}  # by id of the tensors that they made
        self.layers: dict[int, Called] = {}

    def write(self, cache: Any) -> Value:
        """Everything; the logits."""
        with probing():
            try:
                calls, logits = self.trace.run(torch.arange(_TOKENS), 0, cache, Answers(0))
            except PROBE_FAULTS as error:
                message = f"its forward could not be tried with stand-ins: {error}"
                raise UnsupportedError(message, type(self.model).__name__, _AS_MODULES) from error
        schema = solve_calls(calls, logits, None, lambda _: Extra())
        if isinstance(schema, str):
            raise UnsupportedError(schema, type(self.model).__name__, _AS_MODULES)
        self._find_sources(calls)
        self.layers = self.trace.layer_calls(calls)
        with self.builder.inside(self.model):
            out = self._emit(schema, None, self._part)
        is_last = self.builder.draft.values[out.buffer].by_sequence
        return out if is_last else self.builder.last(out)

    def _find_sources(self, calls: list[Called]) -> None:
        longest = getattr(self.model.config.get_text_config(decoder=True), "max_position_embeddings", None) or 2048
        for call in calls:
            if not call.earnest:
                continue
            source = PositionSource(call.module, call.args, call.kwargs)
            reason = length_reason(source, longest)
            if reason is not None:
                raise UnsupportedError(reason, call.path, _AS_MODULES)
            self.sources.update((id(tensor), source) for tensor in tensors_in(call.answer))

    def _emit(self, schema: Schema, hidden: Value | None, child: Any) -> Value:
        """Write a schema; `child(call, given)` writes the call of a child."""
        made: list[Any] = []
        for value in schema.values:
            if value is None:
                made.append(hidden)
            elif isinstance(value, ChildCall):
                made.append(child(value, None if value.given is None else made[value.given]))
            elif value.kind == "add":
                made.append(self.builder.add(made[value.parts[0]], made[value.parts[1]]))
            elif value.kind == "scale":
                made.append(self.builder.scale(made[value.parts[0]], value.factor))
            else:
                made.append(self.builder.last(made[value.parts[0]]))
        result: Value = made[schema.result]
        return result

    def _part(self, call: ChildCall, given: Value | None) -> Value:
        """A child of the model, or of what is around the layers."""
        module = self.model.get_submodule(call.path)
        number = self.trace.number_of.get(call.path)
        if number is not None and given is not None:
            return self._layer(number, module, given)
        inputs = () if given is None else (given,)
        return self.builder.module(module, *inputs, width=call.width)

    def _layer(self, number: int, layer: nn.Module, hidden: Value) -> Value:
        called = self.layers[number]
        names = arguments_of(layer, called.args, called.kwargs)
        extra = Extra(number, {name: name for name, value in names.items() if value is not called.given})
        if refusal(layer) is None:
            with self.builder.giving(layer, extra):
                return self.builder.module(layer, hidden, width=hidden.width)
        reason: Any = hook_reason(layer)
        schema: Schema | str = layer_schema(layer, called, number) if reason is None else reason
        before = self.builder.mark()
        if not isinstance(schema, str):
            try:
                with self.builder.inside(layer):
                    return self._emit(schema, hidden, lambda call, given: self._child(layer, names, call, given))
            except _Unsolved as error:
                schema = str(error)
                self.builder.rewind(before)
        with self.builder.giving(layer, extra):
            return self.builder.call(layer, hidden, width=hidden.width, reason=schema)

    def _child(self, layer: nn.Module, names: dict[str, Any], call: ChildCall, given: Value) -> Value:
        child = layer.get_submodule(call.path)
        for name in call.extra.shared.values() if call.extra is not None else ():
            for tensor in tensors_in(names[name]):
                if id(tensor) in self.sources:
                    self.tables.sources[id(child)] = self.sources[id(tensor)]
        with self.builder.giving(child, call.extra):
            value = self.builder.module(child, given, width=call.width)
        last = self.builder.draft.items[-1]
        if isinstance(last, Call) and last.module is child and last.extra is None:
            raise _Unsolved(f"what it hands to {call.path} beside hidden states is not known")
        return value
