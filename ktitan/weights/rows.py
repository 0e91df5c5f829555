"""Stored rows of a module's tensor, for operators that keep weights packed.

Stacks, joins along rows and row orders move whole rows, so the stored bytes of a row are those of the module's row.
Anything else (transposition, arithmetic) has no stored rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from ktitan.errors import WeightError
from ktitan.formats import Span, StoredLayout, StoredRows, find_format
from ktitan.weights.expression import Concat, Expression, Held, Reordered, Reshaped, Stack, Stored
from ktitan.weights.source import FileSource

__all__ = ["layout_of", "module_layouts", "module_rows", "read_rows", "stored_rows"]


@dataclass(frozen=True)
class _Run:
    """Consecutive rows of one stored tensor, `first` counted within the leaf's own part."""

    leaf: Stored
    first: int
    count: int


def layout_of(expression: Expression) -> StoredLayout | None:
    """How the rows of a 2-D or 3-D expression are stored; None when its rows are not stored whole."""
    if len(expression.shape) == 2:
        segments = _segments(expression)
        return None if segments is None else StoredLayout(1, expression.shape[-1], segments)
    if len(expression.shape) != 3 or not expression.shape[0]:
        return None
    found = None
    for index in range(expression.shape[0]):
        entry = _entry(expression, index)
        segments = None if entry is None else _segments(entry)
        if segments is None or (found is not None and segments != found):
            return None
        found = segments
    return None if found is None else StoredLayout(expression.shape[0], expression.shape[-1], found)


def read_rows(expression: Expression, out: np.ndarray, first: int = 0, entry: int | None = None) -> None:
    """Fill `out`, uint8 [count, row_bytes], with the stored bytes of rows `first` to `first + count`.

    Args:
        expression: one that `layout_of` describes.
        out: rows that lie one after another without gaps.
        first: first row, within the entry when one is given.
        entry: index along the first dimension of a 3-D expression.

    Raises:
        WeightError: the rows are not stored whole, or have another width than `out`.
        IoError: the source could not be read.
    """
    matrix = expression if entry is None else _entry(expression, entry)
    runs = None if matrix is None else _runs(matrix)
    if runs is None:
        raise WeightError("its rows are not stored whole", _name(expression), "use an operator with dense weights")
    wanted = _cut(runs, first, len(out))
    if sum(run.count for run in wanted) != len(out):
        raise WeightError(f"rows {first} to {first + len(out)} are not there", _name(expression), "report this")
    done = 0
    for leaf, group in itertools.groupby(wanted, key=lambda run: run.leaf):
        runs = list(group)
        count = sum(run.count for run in runs)
        _read_group(leaf, runs, out[done : done + count])
        done += count


def stored_rows(expression: Expression, first: int, count: int, entry: int | None = None) -> StoredRows | None:
    """Where rows `first` to `first + count` lie in files; arguments as in `read_rows`.

    None when they are not all in files, in one format, or when rows between them belong to others.
    """
    quick = _within_one(expression, first, count, entry)
    if quick is not None:
        return quick
    matrix = expression if entry is None else _entry(expression, entry)
    runs = None if matrix is None else _runs(matrix)
    wanted = [] if runs is None else _cut(runs, first, count)
    if not wanted or sum(run.count for run in wanted) != count or len({run.leaf.info.format for run in wanted}) > 1:
        return None
    spans: list[Span] = []
    order: list[int] | None = None
    leaves = [(leaf, list(group)) for leaf, group in itertools.groupby(wanted, key=lambda run: run.leaf)]
    if len({id(leaf) for leaf, _ in leaves}) < len(leaves):
        return None  # rows of two stored tensors alternate
    if any(len(group) > 1 for _, group in leaves):
        order = _order(leaves)
        if order is None:
            return None
        order = None if order == list(range(count)) else order
    for leaf, group in leaves:
        if isinstance(leaf, Held) or not isinstance(leaf.source, FileSource):
            return None
        start, row_bytes = _start_of(leaf, min(run.first for run in group))
        spans += leaf.source.spans(leaf.info, start, sum(run.count for run in group) * row_bytes)
    columns, name = wanted[0].leaf.shape[-1], wanted[0].leaf.info.format
    return StoredRows(name, count, columns, tuple(spans), None if order is None else tuple(order))


def _within_one(expression: Expression, first: int, count: int, entry: int | None) -> StoredRows | None:
    """`stored_rows` for rows of a single stored tensor in its own order, without steps for each: a model may have 15
    thousand experts. None where it is not so simple.
    """
    if isinstance(expression, Stack) and entry is not None:
        return _within_one(expression.parts[entry], first, count, None)
    if isinstance(expression, Concat) and expression.dim == (0 if entry is None else 1):
        for part in expression.parts:
            rows = part.shape[expression.dim]
            if first + count <= rows:
                return _within_one(part, first, count, entry)
            if first < rows:
                return None
            first -= rows
        return None
    if type(expression) is not Stored or not isinstance(expression.source, FileSource):
        return None
    if len(expression.shape) != (2 if entry is None else 3) or count < 1:
        return None
    rows, columns = expression.shape[-2:]
    if first + count > rows or (entry is not None and expression.entry is not None):
        return None
    row_bytes = find_format(expression.info.format, expression.info.name).row_bytes(columns)
    start = ((entry or expression.entry or 0) * rows + first) * row_bytes
    spans = expression.source.spans(expression.info, start, count * row_bytes)
    return StoredRows(expression.info.format, count, columns, spans)


def _order(leaves: list[tuple[Stored, list[_Run]]]) -> list[int] | None:
    """Which stored row each row is, the leaves' rows one after another; None where others' rows lie between them."""
    order: list[int] = []
    for _, group in leaves:
        rows = np.concatenate([np.arange(run.first, run.first + run.count) for run in group])
        if rows.max() - rows.min() >= len(rows) or len(np.unique(rows)) < len(rows):
            return None
        order += (rows - rows.min() + len(order)).tolist()
    return order


def module_rows(expressions: Mapping[str, Expression]) -> Callable[[str, int, int, int | None], StoredRows | None]:
    """`stored_rows` over a module's tensors by relative name; None for one that a live model holds.

    What is returned keeps no tensor alive.
    """
    kept = {
        name: expression
        for name, expression in expressions.items()
        if not any(isinstance(leaf, Held) for leaf in expression.leaves())
    }

    def find(name: str, first: int, count: int, entry: int | None = None) -> StoredRows | None:
        return stored_rows(kept[name], first, count, entry) if name in kept else None

    return find


def module_layouts(expressions: Mapping[str, Expression]) -> dict[str, StoredLayout]:
    """Layouts of a module's tensors by relative name, without those that have none; no tensor is kept alive."""
    found = {name: layout_of(expression) for name, expression in expressions.items()}
    return {name: layout for name, layout in found.items() if layout is not None}


def _name(expression: Expression) -> str:
    return next((leaf.info.name for leaf in expression.leaves()), "")


def _entry(expression: Expression, index: int) -> Expression | None:
    """One matrix of a 3-D expression."""
    if isinstance(expression, Held):
        return Held(expression.source, expression.info, expression.tensor[index])
    if isinstance(expression, Stored):
        return Stored(expression.source, expression.info, index) if expression.entry is None else None
    if isinstance(expression, Stack):
        return expression.parts[index]
    if isinstance(expression, Concat) and expression.dim == 1:
        parts = [part for part in (_entry(part, index) for part in expression.parts) if part is not None]
        return Concat(parts, 0) if len(parts) == len(expression.parts) else None
    if isinstance(expression, Reordered):
        part = _entry(expression.part, index)
        return None if part is None else Reordered(part, expression.index)
    if isinstance(expression, Reshaped) and expression.shape[0] == 1:
        return expression.part if expression.part.shape == expression.shape[1:] else None
    return None


def _runs(matrix: Expression) -> list[_Run] | None:
    """The stored rows of a 2-D expression, in its order."""
    if isinstance(matrix, Stored):
        return [_Run(matrix, 0, matrix.shape[0])]
    if isinstance(matrix, Concat) and matrix.dim == 0:
        parts = [_runs(part) for part in matrix.parts]
        return None if None in parts else [run for part in parts for run in part or ()]
    if isinstance(matrix, Reordered):
        inner = _runs(matrix.part)
        return None if inner is None else _reordered(inner, matrix.index)
    return None


def _reordered(runs: list[_Run], index: torch.Tensor) -> list[_Run]:
    starts = np.cumsum([0, *(run.count for run in runs)])
    result = []
    for row in index.tolist():
        number = int(np.searchsorted(starts, row, side="right")) - 1
        result.append(_Run(runs[number].leaf, runs[number].first + row - int(starts[number]), 1))
    return result


def _segments(matrix: Expression) -> tuple[tuple[str, int], ...] | None:
    if isinstance(matrix, Reordered):
        inner = _segments(matrix.part)
        if inner is None or len(inner) == 1:
            return inner  # in whatever order, they are of one format
    runs = _runs(matrix)
    if runs is None:
        return None
    joined: list[tuple[str, int]] = []
    for run in runs:
        name = run.leaf.info.format
        if joined and joined[-1][0] == name:
            joined[-1] = (name, joined[-1][1] + run.count)
        else:
            joined.append((name, run.count))
    return tuple(joined)


def _cut(runs: list[_Run], first: int, count: int) -> list[_Run]:
    """The part of `runs` from row `first` on, at most `count` rows."""
    result, start = [], 0
    for run in runs:
        low, high = max(first, start), min(first + count, start + run.count)
        if low < high:
            result.append(_Run(run.leaf, run.first + low - start, high - low))
        start += run.count
    return result


def _read_group(leaf: Stored, runs: list[_Run], out: np.ndarray) -> None:
    """Rows of one leaf; where their order was changed it is read in one piece and gathered."""
    if len(runs) == 1:
        _read_leaf(leaf, runs[0].first, out)
        return
    low = min(run.first for run in runs)
    piece = np.empty((max(run.first + run.count for run in runs) - low, out.shape[1]), np.uint8)
    _read_leaf(leaf, low, piece)
    order = np.concatenate([np.arange(run.first, run.first + run.count) for run in runs])
    np.take(piece, order - low, axis=0, out=out)


def _read_leaf(leaf: Stored, first: int, out: np.ndarray) -> None:
    info = leaf.info
    start, row_bytes = _start_of(leaf, first)
    if out.shape[1] != row_bytes:
        raise WeightError(f"a stored row has {row_bytes} bytes, not {out.shape[1]}", info.name, "report this")
    if isinstance(leaf, Held):
        rows = leaf.tensor[first : first + len(out)].contiguous().cpu()
        out[...] = rows.view(torch.uint8).numpy().reshape(out.shape)
        return
    if not isinstance(leaf.source, FileSource):
        raise WeightError("its source has no stored bytes", info.name, "use an operator with dense weights")
    leaf.source.read_stored(info, start, out.reshape(-1).data)


def _start_of(leaf: Stored, first: int) -> tuple[int, int]:
    """(where row `first` of a leaf begins in its stored tensor, bytes of a row)."""
    row_bytes = find_format(leaf.info.format, leaf.info.name).row_bytes(leaf.shape[-1])
    return (first + (0 if leaf.entry is None else leaf.entry * leaf.shape[0])) * row_bytes, row_bytes
