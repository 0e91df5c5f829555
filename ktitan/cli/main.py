"""The `ktitan` command and its subcommands; nothing here imports torch before a command runs."""

from __future__ import annotations

from typing import Annotated

import typer

import ktitan
from ktitan.bench.command import register as register_bench
from ktitan.cli.plan import plan
from ktitan.cli.rules import rules
from ktitan.cli.serve import serve
from ktitan.local_chat.command import chat
from ktitan.local_chat.terminal import APP_OPTIONS, CONTEXT_SETTINGS, GuardedGroup

__all__ = ["app", "main"]

app = typer.Typer(cls=GuardedGroup, no_args_is_help=True, context_settings=CONTEXT_SETTINGS, **APP_OPTIONS)
app.command("chat")(chat)
app.command("serve")(serve)
app.command("plan")(plan)
app.add_typer(rules, name="rules")
register_bench(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ktitan {ktitan.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Rules turn a stock transformers model into a streaming engine for models larger than VRAM and RAM."""


def main() -> None:
    """Entry point of the `ktitan` command; exits with 0, 2 for the user's error, 1 for a fault."""
    app(prog_name="ktitan")


if __name__ == "__main__":
    main()
