"""`python -m ktitan.local_chat`."""

from __future__ import annotations

import typer

from ktitan.local_chat.command import chat
from ktitan.local_chat.terminal import APP_OPTIONS, CONTEXT_SETTINGS, GuardedCommand

app = typer.Typer(**APP_OPTIONS)
app.command(cls=GuardedCommand, context_settings=CONTEXT_SETTINGS)(chat)

if __name__ == "__main__":
    app(prog_name="python -m ktitan.local_chat")
