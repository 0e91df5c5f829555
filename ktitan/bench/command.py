"""The `bench` commands of the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["register"]

bench = typer.Typer(help="Measure the machine, and what runs on it, against ceilings and peers.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the sub-app `bench` to `app`."""
    app.add_typer(bench, name="bench")


@bench.command("hw")
def hw(
    path: Annotated[Path | None, typer.Option(help="File or directory whose drive is read.", exists=True)] = None,
    seconds: Annotated[float, typer.Option(help="Time for each case.", min=0.01)] = 1.0,
    gpu: Annotated[int | None, typer.Option(help="CUDA device; the first when not given.", metavar="INDEX")] = None,
    json: Annotated[bool, typer.Option("--json", help="JSON lines on stdout, the machine first.")] = False,
) -> None:
    """Measure this machine's ceilings: memory read, matrix products, drive, PCIe and GPU."""
    from rich.console import Console

    from ktitan.bench import hw as bench_hw
    from ktitan.bench.report import machine, print_json, print_table
    from ktitan.hardware import detect

    with Console(stderr=True).status("looking at the machine") as status:
        hardware = detect()
        results = bench_hw.run(path, seconds, hardware=hardware, gpu=gpu, progress=status.update)
    (print_json if json else print_table)(results, machine(hardware))


@bench.command("cpu")
def cpu(
    model: Annotated[str, typer.Argument(help="Folder, .gguf, hub id, or demo.")],
    peer: Annotated[
        str | None, typer.Option(help="llamacpp: the same on llama-cpp-python, if it is installed.")
    ] = None,
    prompt: Annotated[int, typer.Option(help="Tokens of the prompt.", min=1)] = 512,
    new: Annotated[int, typer.Option(help="Tokens decoded after it.", min=1)] = 32,
    rounds: Annotated[int, typer.Option(help="Timed rounds.", min=3)] = 5,
    threads: Annotated[int | None, typer.Option(help="Threads; default: the usable CPUs.", min=1)] = None,
    json: Annotated[bool, typer.Option("--json", help="JSON lines on stdout, the machine first.")] = False,
) -> None:
    """Measure prefill and decode of MODEL on the CPU, against the memory's read rate and a peer."""
    from rich.console import Console

    from ktitan.bench import cpu as bench_cpu
    from ktitan.bench.report import machine, print_json, print_table
    from ktitan.hardware import detect

    with Console(stderr=True).status("looking at the machine") as status:
        hardware = detect()
        results = bench_cpu.run(
            model,
            peer=peer,
            prompt=prompt,
            new=new,
            rounds=rounds,
            threads=threads,
            hardware=hardware,
            progress=status.update,
        )
    (print_json if json else print_table)(results, machine(hardware))
