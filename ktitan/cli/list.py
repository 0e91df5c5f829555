"""`ktitan list`: the models in the cache."""

from __future__ import annotations

import json as json_format
from typing import Annotated, Any

import typer

__all__ = ["list_cached"]


def list_cached(
    json: Annotated[bool, typer.Option("--json", help="One JSON array, a model an object.")] = False,
) -> None:
    """Show the models in the hub's cache that ktitan can run, by the name that other commands take."""
    from ktitan.hub.cache import cache_folder, list_models

    models = list_models()
    if json:
        typer.echo(json_format.dumps([one.to_json() for one in models], indent=2, ensure_ascii=False))
    elif not models:
        typer.echo(f"no model that ktitan can run is in {cache_folder()}; ktitan pull org/name downloads one", err=True)
    else:
        _show(models)


def _show(models: list[Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ktitan.tiers import format_bytes

    console = Console(markup=False, highlight=False)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for title in ("model", "kind", "size", "last used", "revision", ""):
        # A name is there to be copied, so it is never cut.
        table.add_column(title, justify="right" if title == "size" else "left", overflow="fold")
    for one in models:
        used = one.last_used.astimezone().strftime("%Y-%m-%d %H:%M")
        revision = one.revision[:12] if one.revision == one.commit else one.revision
        cells = (one.model, one.kind, format_bytes(one.bytes), used, revision, "" if one.complete else "partial")
        table.add_row(*map(Text, cells))
    if not console.is_terminal:
        console.width = max(
            console.width, table.__rich_measure__(console, console.options.update(max_width=1000)).maximum
        )
    console.print(table)
