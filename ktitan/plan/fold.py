"""The rows of a plan for people: layers with the same decision share a row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ktitan.rules import LayerSet

if TYPE_CHECKING:
    from ktitan.plan.rows import PlanRow

__all__ = ["FoldedRow", "fold_rows"]


@dataclass(frozen=True)
class FoldedRow:
    """Rows that share everything but their bytes and a number in their path.

    Attributes:
        path: their path, with the numbers in brackets where there are several.
        rows: the rows, in the plan's order; never empty.
    """

    path: str
    rows: tuple[PlanRow, ...]

    @property
    def row(self) -> PlanRow:
        """The first row, for what all share."""
        return self.rows[0]

    @property
    def bytes(self) -> int:
        """Bytes of all rows together."""
        return sum(row.bytes for row in self.rows)


def fold_rows(rows: Iterable[PlanRow]) -> list[FoldedRow]:
    """Rows in the order of their first module; `a.0.b`, `a.1.b`, `a.3.b` of the same decision become `a.[0-1,3].b`.

    Numbers are folded from the innermost outwards, so that layers fold only where their experts folded to the same
    numbers. The stock class is no part of a decision.
    """
    folded = [FoldedRow(row.path, (row,)) for row in rows]
    depth = max((row.path.count(".") for row in folded), default=-1)
    for segment in range(depth, -1, -1):
        folded = _fold_segment(folded, segment)
    return folded


def _fold_segment(rows: Sequence[FoldedRow], segment: int) -> list[FoldedRow]:
    """Fold rows that differ only in the number that is segment `segment` of their path."""
    groups: dict[object, list[FoldedRow]] = {}
    for index, folded in enumerate(rows):
        parts = folded.path.split(".")
        if segment < len(parts) and parts[segment].isdigit():
            parts[segment] = "#"
            decision = replace(folded.row, path=".".join(parts), module="", bytes=0, resident_bytes=0)
            groups.setdefault(decision, []).append(folded)
        else:
            groups[index] = [folded]
    return [_merged(group, segment) for group in groups.values()]


def _merged(group: Sequence[FoldedRow], segment: int) -> FoldedRow:
    if len(group) == 1:
        return group[0]
    parts = group[0].path.split(".")
    parts[segment] = f"[{LayerSet.of(int(folded.path.split('.')[segment]) for folded in group)}]"
    return FoldedRow(".".join(parts), tuple(row for folded in group for row in folded.rows))
