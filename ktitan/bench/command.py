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


@bench.command("stream")
def stream(
    model: Annotated[str, typer.Argument(help="Folder, .gguf, hub id, or demo.")],
    limit: Annotated[
        str | None, typer.Option(help="Memory of either side, 50% (of the model) or 2GiB; root only.", metavar="SIZE")
    ] = None,
    ram: Annotated[str | None, typer.Option(help="Budget; default: what the limit leaves.", metavar="SIZE")] = None,
    rules: Annotated[str | None, typer.Option(help="Rule file of the streamed run; default: auto.")] = None,
    cache: Annotated[str | None, typer.Option(help="Cache options, e.g. policy=lru; default: measured.")] = None,
    peer: Annotated[str | None, typer.Option(help="llamacpp, or ktitan: this, other files or cache.")] = None,
    peer_python: Annotated[str | None, typer.Option(help="The Python that has the peer; default: this one.")] = None,
    peer_model: Annotated[str | None, typer.Option(help="What the peer reads; default: MODEL.")] = None,
    peer_cache: Annotated[str | None, typer.Option(help="Cache options of the peer ktitan.")] = None,
    tokens: Annotated[int, typer.Option(help="Tokens decoded.", min=1)] = 128,
    prompt: Annotated[int, typer.Option(help="Tokens before them.", min=1)] = 8,
    pairs: Annotated[int, typer.Option(help="Rounds of all sides.", min=1)] = 3,
    threads: Annotated[int | None, typer.Option(help="Threads; default: the usable CPUs.", min=1)] = None,
    resident: Annotated[bool, typer.Option(help="Compare with the model in RAM, where it fits.")] = True,
    seed: Annotated[int, typer.Option(help="Of the random tokens.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="JSON lines on stdout, the machine first.")] = False,
) -> None:
    """Measure decoding of MODEL with less RAM than it has bytes, against the drive, the RAM and a peer."""
    from rich.console import Console

    from ktitan.bench import stream as bench_stream
    from ktitan.bench.report import machine, print_json, print_table
    from ktitan.hardware import detect

    case = bench_stream.Case(
        model=model,
        limit=limit,
        ram=ram,
        rules=rules,
        cache=cache,
        peer=peer,
        peer_python=peer_python,
        peer_model=peer_model,
        peer_cache=peer_cache,
        prompt=prompt,
        tokens=tokens,
        pairs=pairs,
        threads=threads,
        resident=resident,
        seed=seed,
    )
    with Console(stderr=True).status("looking at the machine") as status:
        hardware = detect()
        results = bench_stream.run(case, hardware=hardware, progress=status.update)
    (print_json if json else print_table)(results, machine(hardware))


@bench.command("replay")
def replay(
    trace: Annotated[Path, typer.Argument(help="What --record-trace wrote.")],
    slots: Annotated[
        str, typer.Option(help="Sizes of the cache: shares of a layer's experts, or slots of a layer.", metavar="LIST")
    ] = "12.5%,25%,50%",
    scope: Annotated[
        str, typer.Option(help="layer: its experts compete for its slots; global: all of them.")
    ] = "layer",
    policy: Annotated[str | None, typer.Option(help="Policies, with commas; default: all.", metavar="LIST")] = None,
    half_life: Annotated[float, typer.Option(help="Tokens after which one counts half.", min=1, metavar="TOKENS")] = 32,
    plot: Annotated[Path | None, typer.Option(help="Draw hit rates here: .svg, .png or .pdf.", metavar="OUT")] = None,
    json: Annotated[bool, typer.Option("--json", help="JSON lines on stdout, the trace first.")] = False,
) -> None:
    """Replay a trace of routing: hits of each policy, what was avoidable, and how much was foreseen."""
    from rich.console import Console

    from ktitan.bench import replay as bench_replay
    from ktitan.bench import replay_plot
    from ktitan.errors import UnsupportedError

    if scope not in ("layer", "global"):
        raise UnsupportedError(f"{scope!r} is no scope", "--scope", "choose layer or global")
    if plot is not None:
        replay_plot.check_plot(plot)
    with Console(stderr=True).status("reading the trace") as status:
        found = bench_replay.run(
            trace, slots=slots, scope=scope, policy=policy, half_life=half_life, progress=status.update
        )
    (bench_replay.print_json if json else bench_replay.print_table)(found)
    if plot is not None:
        replay_plot.plot(found, plot)


@bench.command("make")
def make(
    out: Annotated[Path, typer.Argument(help="The .gguf to write.")],
    experts: Annotated[int, typer.Option(help="Routed experts of a layer; 0 makes a dense model.", min=0)] = 128,
    chosen: Annotated[int, typer.Option(help="Experts of a token.", min=1)] = 8,
    layers: Annotated[int, typer.Option(help="Layers.", min=1)] = 12,
    hidden: Annotated[int, typer.Option(help="Hidden size.", min=32)] = 2048,
    intermediate: Annotated[int, typer.Option(help="Inner size of an expert or layer.", min=32)] = 768,
    vocabulary: Annotated[int, typer.Option(help="Tokens.", min=257)] = 49152,
    format: Annotated[str, typer.Option(help="q4_k or q8_0.")] = "q4_k",
    uniform: Annotated[bool, typer.Option(help="Route random tokens nearly uniformly.")] = False,
    seed: Annotated[int, typer.Option(help="Of the numbers.")] = 0,
) -> None:
    """Write a GGUF model of random numbers, of any size, to measure with."""
    from ktitan.bench.synthetic import Shape, write_model
    from ktitan.errors import IoError

    shape = Shape(
        layers=layers,
        hidden=hidden,
        experts=experts,
        chosen=min(chosen, experts),
        intermediate=intermediate,
        vocabulary=vocabulary,
        format=format,
        uniform=uniform,
    )
    if out.exists():
        raise IoError("is there already", str(out), "give another name, or remove it")
    try:
        write_model(out, shape, seed)
    except OSError as error:
        raise IoError.of(error, "the model cannot be written", out) from error
    typer.echo(f"wrote {out}, {out.stat().st_size / 1e9:.2f} GB", err=True)
