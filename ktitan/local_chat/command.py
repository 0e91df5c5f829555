"""The command line of the chat: `python -m ktitan.local_chat` and `ktitan chat`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ktitan.local_chat.arguments import (
    MODEL_HELP,
    Budget,
    Cache,
    ChunkSize,
    Context,
    Device,
    Dtype,
    GgufPath,
    Kv,
    Lora,
    Plugin,
    Profile,
    PromptCacheOff,
    Ram,
    RecordTrace,
    Rules,
    Threads,
    VerifyWeights,
    Vram,
    budget_text,
    one_adapter,
    recorded,
)
from ktitan.local_chat.known_names import takes_known_names
from ktitan.local_chat.options import ChatOptions, read_prompt
from ktitan.local_chat.plugin import import_plugin

__all__ = ["chat"]

# What KTransformers puts behind the prompt (`force_think` in its local_chat.py).
THINK = "<think>\n"


@takes_known_names
def chat(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help=MODEL_HELP)] = None,
    model_path: Annotated[str | None, typer.Option("--model-path", "--model", "-m", help="MODEL as an option.")] = None,
    gguf_path: GgufPath = None,
    rules: Rules = "auto",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer in tokens.")] = 1000,
    system: Annotated[str, typer.Option(help="System prompt.")] = "",
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="Answer this and leave.")] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Answer the text of this file and leave.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="0 is greedy; default: the model's own.")] = None,
    top_p: Annotated[float | None, typer.Option(min=0, max=1, help="Likeliest tokens with this probability.")] = None,
    top_k: Annotated[int | None, typer.Option(min=0, help="So many likeliest tokens; 0 is off.")] = None,
    min_p: Annotated[
        float | None, typer.Option(min=0, max=1, help="Share of the likeliest token's probability.")
    ] = None,
    repetition_penalty: Annotated[float | None, typer.Option(min=0.01, help="Above 1: repeat less.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text.")] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always the likeliest token.")] = False,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the model's end mark.")] = False,
    force_think: Annotated[bool, typer.Option("--force-think", help="Let the answer begin with <think>.")] = False,
    chunk_size: ChunkSize = None,
    threads: Threads = None,
    budget: Budget = None,
    vram: Vram = None,
    ram: Ram = None,
    cache: Cache = None,
    kv: Kv = None,
    profile: Profile = None,
    record_trace: RecordTrace = None,
    device: Device = None,
    context: Context = None,
    no_prompt_cache: PromptCacheOff = False,
    dtype: Annotated[Dtype, typer.Option(help="auto: the checkpoint's, where the device is good at it.")] = Dtype.auto,
    lora: Lora = None,
    verify_weights: VerifyWeights = False,
    plugin: Plugin = None,
    stats: Annotated[
        bool, typer.Option("--stats", help="After each answer, on stderr: hits, reads, waiting, prefetch, policy.")
    ] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="Plain text on stderr.")] = False,
) -> None:
    """Chat with MODEL in the terminal, or answer one prompt (-p, --prompt-file, or text from a pipe).

    The answer goes to stdout, all else to stderr. In the chat, /help lists the commands; Ctrl-C ends an answer, and
    what was written of it stays in the conversation.
    """
    name = _one_model(model, model_path)
    if prompt is not None and prompt_file is not None:
        raise typer.BadParameter("give --prompt or --prompt-file, not both")
    loading: dict[str, Any] = {"gguf_path": gguf_path, "rules": rules, "device": device, "dtype": dtype.value}
    if lora:
        loading["lora"] = one_adapter(lora)
    if verify_weights:
        loading["verify_weights"] = True
    room = {"budget": budget_text(budget, vram, ram), "context": context, "profile": profile}
    keeping = {"cache": cache, "kv": kv}
    shaping: dict[str, Any] = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p}
    choosing = {"repetition_penalty": repetition_penalty, "seed": seed, "greedy": greedy or None}
    lengths: dict[str, Any] = {"max_new_tokens": max_new_tokens, "ignore_eos": ignore_eos, "chunk_tokens": chunk_size}
    if force_think:
        lengths["opening"] = THINK
    options = ChatOptions(
        model=name,
        load={**loading, **room, **keeping},
        stream={**shaping, **choosing, **lengths},
        system=system,
        threads=threads,
        no_color=no_color,
        stats=stats,
        record_trace=record_trace,
        context_tokens=context,
        prompt_cache=not no_prompt_cache,
    )
    code = _run(options, read_prompt(prompt, prompt_file), plugin)
    if code:
        raise typer.Exit(code)


def _one_model(model: str | None, model_path: str | None) -> str:
    if (model is None) == (model_path is None):
        raise typer.BadParameter("give MODEL once: as an argument, or as --model-path")
    return model or model_path or ""


def _run(options: ChatOptions, prompt: str | None, plugin: str | None) -> int:
    """Load the model and answer; the exit code."""
    from rich.console import Console

    from ktitan.local_chat.loading import load_model, save_profile
    from ktitan.local_chat.reader import Reader
    from ktitan.local_chat.session import Session

    # Text of models, files and users must not be taken for markup, and a long line is the terminal's to wrap.
    console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True, no_color=options.no_color or None)
    if hasattr(sys.stdout, "reconfigure"):
        # A terminal that cannot show a character shows a question mark, and the answer goes on.
        sys.stdout.reconfigure(errors="replace")
    import_plugin(plugin)
    model, tokenizer = load_model(options, console)
    session = Session(model, tokenizer, options, console)
    try:
        with recorded(model, options.record_trace):
            return session.run(Reader(console)) if prompt is None else session.run_once(prompt)
    finally:
        save_profile(model, options)
