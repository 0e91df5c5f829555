"""`ktitan` without a command: one answer, a chat, or what the machine is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar

import typer

import ktitan
from ktitan.cli.serve import serve as run_server
from ktitan.errors import UnsupportedError
from ktitan.local_chat.command import chat

__all__ = ["root"]

CommandT = TypeVar("CommandT", bound=Callable[..., None])


def takes_options_of(*others: Callable[..., None], without: tuple[str, ...]) -> Callable[[CommandT], CommandT]:
    """Give a command the parameters of others, but for some, in place of its `**options`."""

    def decorate(command: CommandT) -> CommandT:
        own = inspect.signature(command, eval_str=True).parameters.values()
        named = [parameter for parameter in own if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
        theirs = {parameter.name: parameter for other in reversed(others) for parameter in _parameters(other)}
        shared = [parameter for name, parameter in theirs.items() if name not in without]
        keywords = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*named, *shared)]
        command.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
        return command

    return decorate


def _parameters(command: Callable[..., None]) -> Iterable[inspect.Parameter]:
    return inspect.signature(command, eval_str=True).parameters.values()


CHAT_OPTIONS, SERVER_OPTIONS = ({one.name for one in _parameters(command)} for command in (chat, run_server))


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ktitan {ktitan.__version__}")
        raise typer.Exit


@takes_options_of(chat, run_server, without=("model",))
def root(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
    hardware: Annotated[bool, typer.Option("--hardware", help="Show what this machine is and leave.")] = False,
    json: Annotated[bool, typer.Option("--json", help="With --hardware: one JSON object.")] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="With --hardware: measure memory, PCIe, and the drive under -m MODEL.")
    ] = False,
    serve: Annotated[bool, typer.Option("--serve", help="Serve MODEL over HTTP, like ktitan serve.")] = False,
    quant: Annotated[str | None, typer.Option("--quant", "-q", help="Quantize while loading; not there yet.")] = None,
    **options: Any,
) -> None:
    """Rules turn a stock transformers model into a streaming engine for models larger than VRAM and RAM.

    ktitan -m MODEL answers one prompt (-p, --prompt-file, or text from a pipe), else it chats, like ktitan chat; with
    --serve it serves, like ktitan serve.
    """
    given = [name for name in ctx.params if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"]
    if ctx.invoked_subcommand is not None:
        if given:
            raise typer.BadParameter(f"{_flags(given)}: write options of {ctx.invoked_subcommand} behind its name")
        return
    if json and not hardware:
        raise typer.BadParameter("--json goes with --hardware, or behind a command's name")
    if measure and not hardware:
        raise typer.BadParameter("--measure goes with --hardware")
    if hardware and {*given} - {"hardware", "json", "measure", "model_path"}:
        raise typer.BadParameter("--hardware goes alone, or with --json, --measure and -m MODEL")
    if hardware:
        from ktitan.cli.hardware import show_hardware

        model = options["model_path"]
        show_hardware(json, measure or model is not None, model)
        return
    if options["model_path"] is None:
        raise typer.BadParameter("no model: ktitan -m MODEL, where MODEL is a directory, .gguf file, hub id, or demo")
    if quant is not None:
        raise UnsupportedError(
            "quantizing while loading is not there yet", f"-q {quant}", "give a .gguf file, which is quantized already"
        )
    taken = SERVER_OPTIONS if serve else CHAT_OPTIONS
    if foreign := [name for name in given if name in options and name not in taken]:
        raise typer.BadParameter(
            f"{_flags(foreign)}: not with --serve" if serve else f"{_flags(foreign)}: needs --serve"
        )
    command = run_server if serve else chat
    command(**{name: value for name, value in options.items() if name in taken})


def _flags(names: list[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)
