"""`ktitan plan`: what the rules make of a model, and whether it fits, before a weight byte is read."""

from __future__ import annotations

import json as json_format
import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from ktitan.errors import IoError, PlanError, UnsupportedError
from ktitan.local_chat.arguments import (
    Budget,
    Cache,
    Context,
    Device,
    GgufPath,
    Kv,
    Lora,
    Model,
    Plugin,
    Ram,
    Rules,
    Vram,
    budget_text,
    one_adapter,
)
from ktitan.local_chat.known_names import takes_known_names
from ktitan.local_chat.plugin import import_plugin

__all__ = ["plan", "write_atomically"]


@takes_known_names
def plan(
    model: Model,
    rules: Rules = "auto",
    gguf_path: GgufPath = None,
    budget: Budget = None,
    vram: Vram = None,
    ram: Ram = None,
    cache: Cache = None,
    kv: Kv = None,
    device: Device = None,
    context: Context = None,
    lora: Lora = None,
    plugin: Plugin = None,
    json: Annotated[bool, typer.Option("--json", help="The whole plan as one JSON object.")] = False,
    write: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write the plan as a rule file that can be edited.")
    ] = None,
    program: Annotated[
        bool, typer.Option("--program", help="Load the model and show its step program, one line an operation.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="With --write: replace a file that is there.")] = False,
) -> None:
    """Show one row a module: rule, operator, format, tier, device, bytes and kernel. Nothing is loaded.

    Layers with the same decision share a row. Everything that is wrong is listed on stderr, with exit code 2. With
    --program the weights are loaded instead (streamed ones as they are needed), and the operations of a step are shown.
    """
    from ktitan.api import load, plan_model, to_rules

    import_plugin(plugin)
    if write is not None and os.path.lexists(write) and not force:
        raise PlanError("the file is there already", str(write), "choose another name, or add --force")
    limits = budget_text(budget, vram, ram)
    options: dict[str, Any] = {
        "gguf_path": gguf_path,
        "budget": limits,
        "device": device,
        "context": context,
        "lora": one_adapter(lora),
        "cache": cache,
        "kv": kv,
    }
    if program:
        if json or write is not None:
            raise PlanError("--program is text", "--program", "leave --json and --write out")
        _show_program(load(model, rules=rules, **options)[0], model)
        return
    made = plan_model(model, rules, **options)
    if write is not None and not made.faults:
        # Before the plan is shown: a drive without room leaves nothing on stdout.
        write_atomically(write, to_rules(made))
        typer.echo(f"wrote {write}", err=True)
    if json:
        typer.echo(json_format.dumps(made.to_json(), indent=2, ensure_ascii=False))
    else:
        _show(made)
    made.check()
    if not json:
        typer.echo(_verdict(made, vram))


def _show(made: Any) -> None:
    from rich.console import Console

    from ktitan.api import format_bytes
    from ktitan.cli.plan_table import PIPE_WIDTH, plan_table

    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(plan_table(made.folded_rows(), format_bytes, console.width))
    console.print(made.summary(), soft_wrap=True)


def _show_program(loaded: Any, model: str) -> None:
    """The program on stdout, what it is on stderr.

    Raises:
        UnsupportedError: the model has none.
    """
    made = loaded.ktitan.program
    note = next(note for note in reversed(loaded.ktitan.plan.notes) if note.startswith("steps run as"))
    if made is None:
        raise UnsupportedError(note, model, "use operators that have a form in a program (.cpu, .streamed)")
    typer.echo(f"{model}, with its weights loaded: {note}", err=True)
    typer.echo(made.text())


def _verdict(made: Any, vram: str | None) -> str:
    """The answer to "will it fit?", and what of the question had no meaning here."""
    unused = (
        "; --vram has no effect: no module computes on a GPU"
        if vram and all(row.tier != "vram" for row in made.rows)
        else ""
    )
    return f"it fits{unused}"


def write_atomically(path: Path, text: str) -> None:
    """Put `text` at `path` as a whole: whoever reads it sees the old file or the new one, never a part.

    Raises:
        IoError: the folder is missing, cannot be written, or has no room.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        # Renaming onto a device would take the device away.
        raise IoError("cannot be written: not a regular file", str(path), "name a file")
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
        raise IoError.of(error, "cannot be written", path) from error
