"""Which tensors of a model make which records, and the bytes of a record, piece by piece."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ktitan.errors import UnsupportedError
from ktitan.formats import StoredLayout, find_format
from ktitan.formats.plain import plain_name
from ktitan.weights.binding import WeightMap
from ktitan.weights.expression import Converted, Expression, Shifted
from ktitan.weights.native_files import part_bytes
from ktitan.weights.native_format import ALIGN_BYTES, PAGE_BYTES, Part
from ktitan.weights.rows import layout_of, read_rows

__all__ = ["PlannedRecord", "RecordBytes", "plan_records"]

# The memory that a conversion takes, whatever the model: rows are read and written in pieces of this size.
CHUNK_BYTES = 16 << 20
BASE = "base"
_NUMBER = re.compile(r"\.(\d+)\.")


@dataclass(frozen=True, eq=False)
class PlannedRecord:
    """A module's tensors, or one expert's share of them.

    Attributes:
        name: the module's path, with the expert's number in brackets.
        parts: what lies where in it; experts of a module share one tuple.
        tensors: expressions by the module's names.
        by_row: tensors whose stored rows are copied as they are.
        entry: the expert's number, or None.
        nbytes: whole pages.
        is_table: an embedding, whose rows are read one by one: it stays on one drive.
    """

    name: str
    parts: tuple[Part, ...]
    tensors: Mapping[str, Expression]
    by_row: frozenset[str]
    entry: int | None
    nbytes: int
    is_table: bool


def plan_records(model: nn.Module, weights: WeightMap) -> dict[str, list[PlannedRecord]]:
    """Records by group, each of which becomes a file (one on each drive): what belongs to no layer, then the layers.

    Tied tensors have no bytes of their own; the model's config says that they are tied.
    """
    modules: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in model.state_dict().items():
        if name in weights.bindings:
            module, _, own = name.rpartition(".")
            modules.setdefault(module, {})[own] = tensor
    groups: dict[str, list[PlannedRecord]] = {BASE: []}
    for path, tensors in modules.items():
        expressions = {own: weights.bindings[f"{path}.{own}" if path else own] for own in tensors}
        records = _records_of(path, model.get_submodule(path), tensors, expressions)
        groups.setdefault(_group_of(path), []).extend(records)
    return {name: groups[name] for name in sorted(groups) if groups[name]}


def _group_of(path: str) -> str:
    found = _NUMBER.search(f".{path}.")
    return BASE if found is None else f"layer-{int(found[1]):05}"


def _records_of(
    path: str, module: nn.Module, tensors: Mapping[str, torch.Tensor], expressions: Mapping[str, Expression]
) -> list[PlannedRecord]:
    experts = _expert_count(module, tensors)
    parts: list[Part] = []
    layouts: dict[str, StoredLayout] = {}
    for own, tensor in tensors.items():
        end = parts[-1].at + part_bytes(parts[-1]) if parts else 0
        shape = list(tensor.shape[1:] if experts else tensor.shape)
        layout = layout_of(expressions[own]) if len(shape) == 2 else None
        if layout is not None:
            layouts[own] = layout
        rows = (
            ((_plain_format(expressions[own], tensor), math.prod(shape[:-1])),) if layout is None else layout.segments
        )
        parts += _parts_of(own, shape, rows, end)
    size = parts[-1].at + part_bytes(parts[-1])
    nbytes = -(-size // PAGE_BYTES) * PAGE_BYTES
    is_table = isinstance(module, nn.Embedding)
    whole, by_row = tuple(parts), frozenset(layouts)
    if not experts:
        return [PlannedRecord(path, whole, expressions, by_row, None, nbytes, is_table)]
    return [PlannedRecord(f"{path}[{e}]", whole, expressions, by_row, e, nbytes, is_table) for e in range(experts)]


def _expert_count(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> int:
    """Experts of a module whose tensors hold one each along their first dimension; else 0."""
    counts = {tensor.shape[0] if tensor.dim() > 1 else 0 for tensor in tensors.values()}
    matrices = any(tensor.dim() == 3 for tensor in tensors.values())
    convolution = isinstance(module, nn.modules.conv._ConvNd)
    return counts.pop() if len(counts) == 1 and matrices and not convolution else 0


def _parts_of(own: str, shape: list[int], segments: Sequence[tuple[str, int]], end: int) -> list[Part]:
    """The parts of one tensor, the first at the next multiple of 64 behind `end`; segments are (format, rows)."""
    parts: list[Part] = []
    first = 0
    for stored, count in segments:
        at = -(-end // ALIGN_BYTES) * ALIGN_BYTES
        parts.append(Part(tensor=own, shape=shape, format=stored, first_row=first, rows=count, at=at))
        first, end = first + count, at + part_bytes(parts[-1])
    return parts


def _plain_format(expression: Expression, tensor: torch.Tensor) -> str:
    """What holds a tensor without stored rows: the plain format of its parts, float32 for what is computed."""
    names = expression.formats
    if len(names) == 1 and find_format(names[0], "tensor").torch_dtype is not None and not _is_shifted(expression):
        return names[0]
    return "f32" if tensor.is_floating_point() else plain_name(tensor.dtype)


def _is_shifted(expression: Expression) -> bool:
    inner = [getattr(expression, "part", None), *getattr(expression, "parts", ())]
    return isinstance(expression, Shifted) or any(_is_shifted(one) for one in inner if one is not None)


class RecordBytes:
    """Reads records; keeps the last tensor that had to be computed whole, since its experts come one after another."""

    def __init__(self) -> None:
        self._made: tuple[Expression, torch.Tensor] | None = None

    def read(self, record: PlannedRecord) -> Iterator[np.ndarray]:
        """The bytes of a record in order, padding included; each array is valid until the next.

        Raises:
            IoError: the source cannot be read.
            UnsupportedError: a converted tensor needs more bits than its parts have.
        """
        done = 0
        for part in record.parts:
            if part.at > done:
                yield np.zeros(part.at - done, np.uint8)
            expression = record.tensors[part.tensor]
            by_row = part.tensor in record.by_row
            yield from self._rows(part, expression, record.entry) if by_row else self._dense(part, expression, record)
            done = part.at + part_bytes(part)
        if record.nbytes > done:
            yield np.zeros(record.nbytes - done, np.uint8)

    def _rows(self, part: Part, expression: Expression, entry: int | None) -> Iterator[np.ndarray]:
        row_bytes = part_bytes(part) // part.rows
        step = max(1, min(part.rows, CHUNK_BYTES // row_bytes))
        buffer = np.empty((step, row_bytes), np.uint8)
        for first in range(0, part.rows, step):
            chunk = buffer[: min(step, part.rows - first)]
            read_rows(expression, chunk, part.first_row + first, entry)
            yield chunk.reshape(-1)

    def _dense(self, part: Part, expression: Expression, record: PlannedRecord) -> Iterator[np.ndarray]:
        if self._made is None or self._made[0] is not expression:
            self._made = None  # the last one need not be there while the next one is made
            self._made = (expression, _computed(part, expression, record.name))
        made = self._made[1] if record.entry is None else self._made[1][record.entry]
        yield made.contiguous().view(-1).view(torch.uint8).numpy()
        if record.entry is None:
            self._made = None


def _computed(part: Part, expression: Expression, where: str) -> torch.Tensor:
    dtype = find_format(part.format, where).torch_dtype or torch.float32
    if not isinstance(expression, Converted):
        return expression.dense(dtype)
    made = expression.compute()
    stored = made.to(dtype)
    if made.dtype != dtype and not torch.equal(stored.to(made.dtype), made):
        message = f"transformers computes {part.tensor} as {made.dtype}, its parts are {dtype}"
        raise UnsupportedError(message, where, "use the source as it is")
    return stored
