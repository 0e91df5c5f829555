"""`ktitan` without a command: one answer, a chat, or what the machine is."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

import ktitan
from ktitan.errors import UnsupportedError
from ktitan.local_chat.command import chat

__all__ = ["root"]

CommandT = TypeVar("CommandT", bound=Callable[..., None])


def takes_options_of(other: Callable[..., None], without: tuple[str, ...]) -> Callable[[CommandT], CommandT]:
    """Give a command the parameters of another one, but for some, in place of its `**options`."""

    def decorate(command: CommandT) -> CommandT:
        own = inspect.signature(command, eval_str=True).parameters.values()
        named = [parameter for parameter in own if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
        theirs = inspect.signature(other, eval_str=True).parameters.values()
        shared = [parameter for parameter in theirs if parameter.name not in without]
        command.__signature__ = inspect.Signature([*named, *shared])  # type: ignore[attr-defined]
        return command

    return decorate


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ktitan {ktitan.__version__}")
        raise typer.Exit


@takes_options_of(chat, without=("model",))
def root(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
    hardware: Annotated[bool, typer.Option("--hardware", help="Show what this machine is and leave.")] = False,
    json: Annotated[bool, typer.Option("--json", help="With --hardware: one JSON object.")] = False,
    quant: Annotated[str | None, typer.Option("--quant", "-q", help="Quantize while loading; not there yet.")] = None,
    **options: Any,
) -> None:
    """Rules turn a stock transformers model into a streaming engine for models larger than VRAM and RAM.

    ktitan -m MODEL answers one prompt (-p, --prompt-file, or text from a pipe), else it chats, like ktitan chat.
    """
    given = [name for name in ctx.params if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"]
    if ctx.invoked_subcommand is not None:
        if given:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise typer.BadParameter(f"{flags}: write options of {ctx.invoked_subcommand} behind its name")
        return
    if json and not hardware:
        raise typer.BadParameter("--json goes with --hardware, or behind a command's name")
    if hardware and {*given} - {"hardware", "json"}:
        raise typer.BadParameter("--hardware goes alone, or with --json")
    if hardware:
        from ktitan.cli.hardware import show_hardware

        show_hardware(json)
        return
    if options["model_path"] is None:
        raise typer.BadParameter("no model: ktitan -m MODEL, where MODEL is a directory, .gguf file, hub id, or demo")
    if quant is not None:
        raise UnsupportedError(
            "quantizing while loading is not there yet", f"-q {quant}", "give a .gguf file, which is quantized already"
        )
    chat(**options)
