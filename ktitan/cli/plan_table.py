"""The table of a plan for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

__all__ = ["PIPE_WIDTH", "plan_table"]

# Columns of a table that goes into a pipe or file, where no terminal says how wide it is.
PIPE_WIDTH = 200

# The order in which columns find room in a narrow terminal, after module and size.
BY_WORTH = ("operator", "device", "tier", "format", "n", "rule", "kernel", "notes")
GAP = 3  # what rich puts between two columns


def plan_table(rows: Sequence[Any], format_bytes: Callable[[int], str], width: int = PIPE_WIDTH) -> Table:
    """The table of a plan's `folded_rows`; columns that are empty in all rows are left out.

    Below `PIPE_WIDTH` columns only those are shown that fit, and a line below the table names the others.
    """
    columns: dict[str, Callable[[Any], str]] = {
        "module": lambda row: row.path,
        "n": lambda row: str(len(row.rows)),
        "operator": lambda row: row.row.operator,
        "format": lambda row: row.row.format,
        "tier": lambda row: row.row.tier,
        "device": lambda row: row.row.device,
        "size": lambda row: format_bytes(row.bytes),
        "kernel": lambda row: row.row.kernel,
        "rule": lambda row: row.row.rule,
        "notes": lambda row: row.row.notes,
    }
    cells = {title: [read(row) for row in rows] for title, read in columns.items()}
    filled = {title: column for title, column in cells.items() if any(column)}
    shown = _fitting(filled, width)
    left_out = [title for title in filled if title not in shown]
    caption = f"not shown: {', '.join(left_out)} (a wider terminal, a pipe or --json shows them)" if left_out else None
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), caption=caption, caption_justify="left")
    for title in shown:
        options: dict[str, Any] = {"overflow": "fold"}
        if title in ("n", "size"):
            options = {"justify": "right", "no_wrap": True}
        table.add_column(title, **options)
    for row in zip(*(filled[title] for title in shown), strict=True):
        # As Text, since "[...]" in a path or a file's name is no markup.
        table.add_row(*map(Text, row))
    return table


def _fitting(cells: Mapping[str, Sequence[str]], width: int) -> list[str]:
    """Titles of the columns that fit, in the table's order; what differs between rows goes before what does not."""
    if width >= PIPE_WIDTH:
        return list(cells)
    room = {title: GAP + max(len(title), *map(len, column)) for title, column in cells.items()}
    chosen = [title for title in ("module", "size") if title in cells]
    left = width - sum(min(room[title], width // 2) for title in chosen)
    ranked = sorted((t for t in BY_WORTH if t in cells), key=lambda title: len(set(cells[title])) == 1)
    for title in ranked:
        if room[title] <= left:
            chosen.append(title)
            left -= room[title]
    return [title for title in cells if title in chosen]
