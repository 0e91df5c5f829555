"""`ktitan rm`: models out of the cache."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ktitan.cli.pull import HubModel, Revision
from ktitan.errors import UnsupportedError

__all__ = ["is_terminal", "remove"]


def remove(
    model: HubModel,
    revision: Revision = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete MODEL from the hub's cache: all of it, one revision, or one of its GGUF models.

    Says first what will be freed. On a terminal it asks; elsewhere it needs --yes.
    """
    from ktitan.hub.names import read_name
    from ktitan.hub.removal import plan_removal
    from ktitan.tiers import format_bytes

    name = read_name(model, revision)
    removal = plan_removal(name)
    freed = format_bytes(removal.freed_bytes)
    typer.echo(f"{removal.what}: frees {freed}", err=True)
    if not yes and not is_terminal():
        raise UnsupportedError("nothing was deleted: there is no terminal to ask on", str(name), "add --yes")
    if not yes and not typer.confirm("Delete?", err=True):
        typer.echo("nothing was deleted", err=True)
        return
    removal.execute()
    typer.echo(f"deleted {removal.what}: {freed}", err=True)


def is_terminal() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty()
