"""`ktitan plan`: what the rules make of a model, and whether it fits, before a weight byte is read."""

from __future__ import annotations

import json as json_format
import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from ktitan.errors import IoError
from ktitan.local_chat.command import MODEL_HELP
from ktitan.local_chat.terminal import budget_text

__all__ = ["plan", "write_atomically"]


def plan(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    rules: Annotated[
        str, typer.Option("--rules", "--optimize-config-path", help="Rule file, name of a packaged one, or auto.")
    ] = "auto",
    gguf_path: Annotated[
        str | None, typer.Option(help="GGUF weights for a folder that holds config and tokenizer.")
    ] = None,
    budget: Annotated[str | None, typer.Option(help="Most bytes per tier, e.g. vram=22GiB,ram=96GiB.")] = None,
    vram: Annotated[str | None, typer.Option(help="Most bytes in VRAM, e.g. 22GiB.")] = None,
    ram: Annotated[str | None, typer.Option(help="Most bytes in RAM, e.g. 96GiB.")] = None,
    device: Annotated[str | None, typer.Option(help="Where modules without a rule compute, e.g. cuda:0.")] = None,
    context: Annotated[int | None, typer.Option(min=1, help="Tokens that the KV cache has room for.")] = None,
    json: Annotated[bool, typer.Option("--json", help="The whole plan as one JSON object.")] = False,
    write: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write the plan as a rule file that can be edited.")
    ] = None,
) -> None:
    """Show one row a module: rule, operator, format, tier, device, bytes and kernel. Nothing is loaded.

    Layers with the same decision share a row. Everything that is wrong is listed on stderr, with exit code 2.
    """
    from ktitan.api import plan_model, to_rules

    limits = budget_text(budget, vram, ram)
    made = plan_model(model, rules, gguf_path=gguf_path, budget=limits, device=device, context=context)
    if json:
        typer.echo(json_format.dumps(made.to_json(), indent=2, ensure_ascii=False))
    else:
        _show(made)
    made.check()
    if write is not None:
        write_atomically(write, to_rules(made))
        typer.echo(f"wrote {write}", err=True)


def _show(made: Any) -> None:
    from rich.console import Console

    from ktitan.api import format_bytes
    from ktitan.cli.plan_table import PIPE_WIDTH, fold_rows, plan_table

    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(plan_table(fold_rows(made.rows), format_bytes))
    console.print(made.summary(), soft_wrap=True)


def write_atomically(path: Path, text: str) -> None:
    """Put `text` at `path` as a whole: whoever reads it sees the old file or the new one, never a part.

    Raises:
        IoError: the folder is missing or cannot be written.
    """
    temporary = ""
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        # mkstemp's files are private; a new file gets what the user's umask allows.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise IoError(
            f"cannot be written: {error.strerror}", str(path), "choose a folder that you may write"
        ) from error
