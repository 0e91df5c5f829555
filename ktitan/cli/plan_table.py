"""The table of a plan for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

__all__ = ["PIPE_WIDTH", "plan_table"]

# Columns of a table that goes into a pipe or file, where no terminal says how wide it is.
PIPE_WIDTH = 200


# What a narrow terminal can spare; `--json` and a pipe show all.
DETAILS = ("kernel", "rule", "notes")
WIDE = 140


def plan_table(rows: Sequence[Any], format_bytes: Callable[[int], str], width: int = PIPE_WIDTH) -> Table:
    """The table of a plan's `folded_rows`; columns that are empty in all rows are left out.

    Below 140 columns the details are left out, too, and columns that say the same in every row.
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
    shown = {title: column for title, column in cells.items() if any(column)}
    if width < WIDE:
        shown = {t: column for t, column in shown.items() if t not in DETAILS}
        shown = {t: column for t, column in shown.items() if t in ("module", "size") or len(set(column)) > 1}
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for title in shown:
        options: dict[str, Any] = {"justify": "right"} if title in ("n", "size") else {"overflow": "fold"}
        if title == "module" and width >= WIDE // 2:
            options["min_width"] = min(max(map(len, shown[title])), width // 2)
        table.add_column(title, **options)
    for row in zip(*shown.values(), strict=True):
        # As Text, since "[...]" in a path or a file's name is no markup.
        table.add_row(*map(Text, row))
    return table
