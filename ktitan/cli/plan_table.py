"""The rows of a plan for people: layers with the same decision share a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rich import box
from rich.table import Table
from rich.text import Text

__all__ = ["PIPE_WIDTH", "PlanTableRow", "fold_rows", "number_set", "plan_table"]

# Columns of a table that goes into a pipe or file, where no terminal says how wide it is.
PIPE_WIDTH = 200


class PlanRow(Protocol):
    """What is read of a plan's row."""

    path: str
    rule: str
    operator: str
    format: str
    tier: str
    device: str
    bytes: int
    kernel: str
    notes: str


@dataclass(frozen=True)
class PlanTableRow:
    """One row of the table, for `count` modules that share everything but a number in their path."""

    path: str
    rule: str
    operator: str
    format: str
    tier: str
    device: str
    bytes: int
    kernel: str
    notes: str
    count: int = 1


def fold_rows(rows: Iterable[PlanRow]) -> list[PlanTableRow]:
    """Rows in the order of their first module; `a.0.b`, `a.1.b`, `a.3.b` of the same decision become `a.[0-1,3].b`.

    Bytes are summed and may differ between modules of one row. Numbers are folded from the innermost outwards, so that
    layers fold only where their experts folded to the same numbers.
    """
    folded = [
        PlanTableRow(
            row.path, row.rule, row.operator, row.format, row.tier, row.device, row.bytes, row.kernel, row.notes
        )
        for row in rows
    ]
    depth = max((row.path.count(".") for row in folded), default=-1)
    for segment in range(depth, -1, -1):
        folded = _fold_segment(folded, segment)
    return folded


def _fold_segment(rows: Sequence[PlanTableRow], segment: int) -> list[PlanTableRow]:
    """Fold rows that differ only in the number that is segment `segment` of their path."""
    groups: dict[object, list[PlanTableRow]] = {}
    for index, row in enumerate(rows):
        parts = row.path.split(".")
        if segment < len(parts) and parts[segment].isdigit():
            parts[segment] = "#"
            groups.setdefault(replace(row, path=".".join(parts), bytes=0, count=0), []).append(row)
        else:
            groups[index] = [row]
    return [_merged(group, segment) for group in groups.values()]


def _merged(rows: Sequence[PlanTableRow], segment: int) -> PlanTableRow:
    if len(rows) == 1:
        return rows[0]
    parts = rows[0].path.split(".")
    parts[segment] = f"[{number_set(int(row.path.split('.')[segment]) for row in rows)}]"
    total_bytes, count = sum(row.bytes for row in rows), sum(row.count for row in rows)
    return replace(rows[0], path=".".join(parts), bytes=total_bytes, count=count)


def number_set(numbers: Iterable[int]) -> str:
    """Numbers as ranges: 0, 1, 2, 5 is "0-2,5"."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def plan_table(rows: Sequence[PlanTableRow], format_bytes: Callable[[int], str]) -> Table:
    """The table; columns that are empty in all rows are left out."""
    columns: dict[str, Callable[[PlanTableRow], str]] = {
        "module": lambda row: row.path,
        "n": lambda row: str(row.count),
        "operator": lambda row: row.operator,
        "format": lambda row: row.format,
        "tier": lambda row: row.tier,
        "device": lambda row: row.device,
        "size": lambda row: format_bytes(row.bytes),
        "kernel": lambda row: row.kernel,
        "rule": lambda row: row.rule,
        "notes": lambda row: row.notes,
    }
    cells = {title: [read(row) for row in rows] for title, read in columns.items()}
    shown = {title: column for title, column in cells.items() if any(column)}
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for title in shown:
        options: dict[str, Any] = {"justify": "right"} if title in ("n", "size") else {"overflow": "fold"}
        table.add_column(title, **options)
    for row in zip(*shown.values(), strict=True):
        # As Text, since "[...]" in a path or a file's name is no markup.
        table.add_row(*map(Text, row))
    return table
