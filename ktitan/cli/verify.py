"""`ktitan verify`: how good a model is, and how far it is from a reference."""

from __future__ import annotations

import json as json_format
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from ktitan.local_chat.arguments import (
    Budget,
    Device,
    Dtype,
    GgufPath,
    Lora,
    Model,
    Plugin,
    Ram,
    Rules,
    Threads,
    VerifyWeights,
    Vram,
    budget_text,
    one_adapter,
)
from ktitan.local_chat.plugin import import_plugin

__all__ = ["verify"]

_AGAINST = "The reference: stock (MODEL's folder in stock transformers), an HF folder (stock too), or another MODEL."


class Float(str, Enum):
    """Numbers that a stock reference computes with."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


def verify(
    model: Model,
    against: Annotated[str | None, typer.Option(metavar="REF", help=_AGAINST)] = None,
    ids: Annotated[
        Path | None, typer.Option(metavar="F.npy", help="Token ids, an integer array [rows, tokens].")
    ] = None,
    text: Annotated[Path | None, typer.Option(metavar="F", help="UTF-8 text, cut into windows.")] = None,
    window: Annotated[int, typer.Option(min=2, help="Tokens of a window of text.")] = 512,
    rows: Annotated[int | None, typer.Option(min=1, help="Only the first so many windows.")] = None,
    rules: Rules = "auto",
    gguf_path: GgufPath = None,
    budget: Budget = None,
    vram: Vram = None,
    ram: Ram = None,
    device: Device = None,
    dtype: Annotated[Dtype, typer.Option(help="auto: the checkpoint's, where the device is good at it.")] = Dtype.auto,
    against_device: Annotated[str | None, typer.Option(help="Where the reference computes; default: --device.")] = None,
    against_dtype: Annotated[Float, typer.Option(help="What a stock reference computes in.")] = Float.float32,
    threads: Threads = None,
    lora: Lora = None,
    verify_weights: VerifyWeights = False,
    plugin: Plugin = None,
    chunk: Annotated[
        int | None, typer.Option(min=1, help="Tokens in one pass; default: up to 512, fewer with a large vocabulary.")
    ] = None,
    spool: Annotated[
        Path | None, typer.Option(help="Folder for the reference's logits, one number a token and vocabulary entry.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Score MODEL on token windows: NLL, perplexity, and KL divergence and top-1 agreement against a reference.

    Positions 1 to the end of each window count, all in nats. The figures go to stdout, progress to stderr. The
    reference runs first and leaves memory; its logits wait in a temporary file, whose room is checked.
    """
    from ktitan.api import set_threads
    from ktitan.cli.progress import Steps
    from ktitan.verify import verify_model

    import_plugin(plugin)
    if threads is not None:
        set_threads(threads)
    with Steps() as steps:
        report = verify_model(
            model,
            against,
            ids=ids,
            text=text,
            window=window,
            rows=rows,
            against_device=against_device,
            against_dtype=against_dtype.value,
            chunk_tokens=chunk,
            spool=spool,
            progress=steps.show,
            gguf_path=gguf_path,
            rules=rules,
            budget=budget_text(budget, vram, ram),
            device=device,
            dtype=dtype.value,
            lora=one_adapter(lora),
            verify_weights=verify_weights,
        )
    if json:
        typer.echo(json_format.dumps(report.to_json(), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        typer.echo("\n".join(f"{name:<16} {value}" for name, value in _lines(report)))


def _lines(report: Any) -> list[tuple[str, str]]:
    """The figures for people, as pairs of name and value."""
    from math import exp

    lines = [
        ("positions", f"{report.tokens} in {report.rows} windows of {report.source}"),
        ("NLL", f"{report.nll:.5f}{_error(report.nll_error)} nats"),
        ("perplexity", f"{report.ppl:.4f}"),
    ]
    if report.against is None:
        return lines
    return [
        *lines,
        ("against", report.against),
        ("its NLL", f"{report.reference_nll:.5f} nats (perplexity {exp(report.reference_nll):.4f})"),
        ("KL mean", f"{report.kld:.6f}{_error(report.kld_error)} nats"),
        ("KL 99 %", f"{report.kld_p99:.6f}"),
        ("KL largest", f"{report.kld_max:.6f}"),
        ("same top token", f"{100 * report.top1:.2f} %"),
    ]


def _error(value: float | None) -> str:
    return "" if value is None else f" ± {value:.2g}"
