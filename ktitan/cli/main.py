"""The `ktitan` command and its subcommands; nothing here imports torch before a command runs."""

from __future__ import annotations

import os
import sys

import typer

from ktitan.bench.command import register as register_bench
from ktitan.cli.convert import convert
from ktitan.cli.list import list_cached
from ktitan.cli.plan import plan
from ktitan.cli.pull import pull
from ktitan.cli.remove import remove
from ktitan.cli.root import root
from ktitan.cli.rules import rules
from ktitan.cli.serve import serve
from ktitan.cli.verify import verify
from ktitan.doctor.command import doctor
from ktitan.local_chat.command import chat
from ktitan.local_chat.terminal import APP_OPTIONS, CONTEXT_SETTINGS, GuardedGroup

__all__ = ["app", "main"]

OPTIONS = {**APP_OPTIONS, "add_completion": True}

app = typer.Typer(cls=GuardedGroup, no_args_is_help=True, context_settings=CONTEXT_SETTINGS, **OPTIONS)
app.callback(invoke_without_command=True)(root)
app.command("chat")(chat)
app.command("serve")(serve)
app.command("plan")(plan)
app.command("pull")(pull)
app.command("list")(list_cached)
app.command("rm")(remove)
app.command("convert")(convert)
app.command("doctor")(doctor)
app.command("verify")(verify)
app.add_typer(rules, name="rules")
register_bench(app)


def main() -> None:
    """Entry point of the `ktitan` command; exits with 0, 2 for the user's error, 1 for a fault."""
    _open_closed_streams()
    app(prog_name="ktitan")


def _open_closed_streams() -> None:
    """Where a daemon's or a shell's `<&-` closed a standard stream, Python has None, which no code expects."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


if __name__ == "__main__":
    main()
