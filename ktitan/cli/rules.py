"""`ktitan rules`: work on rule files."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated

import typer

from ktitan.cli.plan import write_atomically
from ktitan.errors import PlanError
from ktitan.local_chat.arguments import Budget, Context, Device, GgufPath, Model, Plugin, Ram, Vram, budget_text
from ktitan.local_chat.plugin import import_plugin

__all__ = ["rules"]

rules = typer.Typer(no_args_is_help=True, help="Work on rule files.")


@rules.callback()
def group() -> None:
    """Work on rule files."""


@rules.command("check")
def check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Rule file, or the name of a packaged one.")],
    model: Model,
    gguf_path: GgufPath = None,
    budget: Budget = None,
    vram: Vram = None,
    ram: Ram = None,
    device: Device = None,
    context: Context = None,
    plugin: Plugin = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object with file, replaced, and faults.")] = False,
) -> None:
    """Hold FILE against MODEL: every fault with its file and line on stderr and exit code 2, or what is replaced."""
    from ktitan.api import plan_model

    import_plugin(plugin)
    limits = budget_text(budget, vram, ram)
    plan = plan_model(model, file, gguf_path=gguf_path, budget=limits, device=device, context=context)
    if json:
        report = {"file": file, "replaced": len(plan.decisions), "faults": plan.to_json()["faults"]}
        typer.echo(json_format.dumps(report, indent=2, ensure_ascii=False))
    plan.check()
    if not json:
        typer.echo(f"{file}: no faults; {len(plan.decisions)} modules are replaced")


@rules.command("import")
def import_file(
    source: Annotated[str, typer.Argument(metavar="SRC", help="Rule file of KTransformers.")],
    target: Annotated[
        Path | None, typer.Argument(metavar="DST", dir_okay=False, help="File to write; stdout if left out.")
    ] = None,
    prefill: Annotated[
        bool, typer.Option("--prefill", help="Keep prefill_op even where KTransformers would not use it.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace DST when it is there.")] = False,
) -> None:
    """Write a KTransformers rule file as a rule file of ktitan.

    What means something else here is a comment at its rule, and a line on stderr.
    """
    from ktitan.api import import_rules

    if target is not None and target.exists() and not force:
        raise PlanError("the file is there already", str(target), "choose another name, or add --force")
    text, notes = import_rules(source, keep_prefill=prefill)
    for note in notes:
        typer.echo(note, err=True)
    if target is None:
        typer.echo(text, nl=False)
        return
    write_atomically(target, text)
    typer.echo(f"wrote {target}", err=True)
