"""`ktitan rules`: work on rule files."""

from __future__ import annotations

import json as json_format
from typing import Annotated

import typer

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
