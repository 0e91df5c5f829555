"""Arguments and options that several commands share, so that they are spelled and explained alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = [
    "Budget",
    "Cache",
    "ChunkSize",
    "Context",
    "Device",
    "Dtype",
    "GgufPath",
    "Kv",
    "Lora",
    "Model",
    "Plugin",
    "Profile",
    "PromptCacheOff",
    "Ram",
    "RecordTrace",
    "Rules",
    "Threads",
    "VerifyWeights",
    "Vram",
    "budget_text",
    "one_adapter",
    "recorded",
]


class Dtype(str, Enum):
    """Numbers that the model computes with."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


MODEL_HELP = "Directory, .gguf file, hub id (org/name, org/name@revision, org/name:Q4_K_M), or demo."

Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)]
Rules = Annotated[
    str,
    typer.Option(
        *("--rules", "--optimize-config-path", "--optimize-rule-path"),
        help="Rule file, name of a packaged one, or auto.",
    ),
]
GgufPath = Annotated[str | None, typer.Option(help="GGUF weights for a folder that holds config and tokenizer.")]
Budget = Annotated[str | None, typer.Option(help="Most bytes per tier, e.g. vram=22GiB,ram=96GiB.")]
Vram = Annotated[str | None, typer.Option(help="Most bytes in VRAM, e.g. 22GiB.")]
Ram = Annotated[str | None, typer.Option(help="Most bytes in RAM, e.g. 96GiB.")]
Cache = Annotated[
    str | None,
    typer.Option(
        "--cache",
        help="What stays in RAM of streamed experts, and what is read early: policy=lru,scope=global,prefetch=off.",
    ),
]
Kv = Annotated[
    str | None,
    typer.Option(
        "--kv", metavar="FORMAT", help="Keys and values are kept as f32 (as computed), bf16 or q8. Default: f32."
    ),
]
Profile = Annotated[
    Path | None,
    typer.Option(
        "--profile", metavar="FILE", help="Streamed experts that were chosen: read at the start, added to at the end."
    ),
]
RecordTrace = Annotated[
    Path | None,
    typer.Option(
        "--record-trace", dir_okay=False, metavar="FILE", help="Write what the routers chose to this .npz at the end."
    ),
]
Device = Annotated[str | None, typer.Option(help="Where modules without a rule compute, e.g. cuda:0.")]
Context = Annotated[
    int | None,
    typer.Option("--context", "-c", min=1, help="Tokens of KV cache to plan for; answers end there."),
]
PromptCacheOff = Annotated[
    bool, typer.Option("--no-prompt-cache", help="Read every prompt from its start, also what was read before.")
]
Threads = Annotated[
    int | None, typer.Option("--threads", "-t", min=1, max=1024, help="Threads on the CPU. Also KTITAN_THREADS.")
]
ChunkSize = Annotated[int | None, typer.Option(min=1, help="Tokens of a prompt in one pass; default: as planned.")]
Lora = Annotated[
    list[Path] | None, typer.Option("--lora", metavar="DIR", help="PEFT adapter of low-rank pairs for linear modules.")
]
VerifyWeights = Annotated[
    bool, typer.Option("--verify-weights", help="First check every checksum of a native model (ktitan convert).")
]
Plugin = Annotated[
    str | None, typer.Option(help="Python file or module to import first; it may register operators.", metavar="FILE")
]


def budget_text(budget: str | None, vram: str | None, ram: str | None) -> str | None:
    """One budget from `--budget`, `--vram` and `--ram`; None when none is given."""
    limits = [budget, f"vram={vram}" if vram else None, f"ram={ram}" if ram else None]
    return ",".join(filter(None, limits)) or None


@contextmanager
def recorded(model: Any, path: Path | None) -> Iterator[Any]:
    """Record the model's routing into `path` while the block runs; yields the recorder, None without a path.

    Raises:
        KtitanError: as `model.ktitan.record_trace`, or the trace cannot be written at the end.
    """
    if path is None:
        yield None
    else:
        with model.ktitan.record_trace(path) as recorder:
            yield recorder


def one_adapter(given: list[Path] | None) -> Path | None:
    """The adapter of `--lora`, if any; a second one would be left out in silence otherwise."""
    if given and len(given) > 1:
        raise typer.BadParameter("--lora takes one adapter; merge several with peft")
    return given[0] if given else None
