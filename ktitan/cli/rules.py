"""`ktitan rules`: work on rule files."""

from __future__ import annotations

import json as json_format
from typing import Annotated

import typer

from ktitan.local_chat.command import MODEL_HELP
from ktitan.local_chat.terminal import budget_text

__all__ = ["rules"]

rules = typer.Typer(no_args_is_help=True, help="Work on rule files.")


@rules.callback()
def group() -> None:
    """Work on rule files."""


@rules.command("check")
def check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Rule file, or the name of a packaged one.")],
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    gguf_path: Annotated[
        str | None, typer.Option(help="GGUF weights for a folder that holds config and tokenizer.")
    ] = None,
    budget: Annotated[str | None, typer.Option(help="Most bytes per tier, e.g. vram=22GiB,ram=96GiB.")] = None,
    vram: Annotated[str | None, typer.Option(help="Most bytes in VRAM, e.g. 22GiB.")] = None,
    ram: Annotated[str | None, typer.Option(help="Most bytes in RAM, e.g. 96GiB.")] = None,
    device: Annotated[str | None, typer.Option(help="Where modules without a rule compute, e.g. cuda:0.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object with file, replaced, and faults.")] = False,
) -> None:
    """Hold FILE against MODEL: every fault with its file and line on stderr and exit code 2, or what is replaced."""
    from ktitan.api import plan_model

    limits = budget_text(budget, vram, ram)
    plan = plan_model(model, file, gguf_path=gguf_path, budget=limits, device=device)
    if json:
        report = {"file": file, "replaced": len(plan.decisions), "faults": plan.to_json()["faults"]}
        typer.echo(json_format.dumps(report, indent=2, ensure_ascii=False))
    plan.check()
    if not json:
        typer.echo(f"{file}: no faults; {len(plan.decisions)} modules are replaced")
