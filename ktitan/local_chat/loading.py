"""Loading the model while the terminal shows how far it is."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from ktitan.local_chat.options import ChatOptions

__all__ = ["load_model", "save_profile"]


def load_model(options: ChatOptions, console: Console) -> tuple[Any, Any]:
    """Model and tokenizer; `console` shows a bar on a terminal, one line otherwise, then the plan.

    Raises:
        KtitanError: as `ktitan.api.load`.
    """
    from ktitan.api import format_bytes, load, locate_model

    if options.threads is not None:
        from ktitan.api import set_threads

        set_threads(options.threads)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    rates = (TransferSpeedColumn(), TimeRemainingColumn())
    # A download has a bar of its own, and two at once would write over each other.
    files = locate_model(options.model, options.load.get("gguf_path"))
    started = time.perf_counter()
    with Progress(*columns, *rates, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"loading {options.model}", total=None)
        total_bytes = 0

        def show(done_bytes: int, all_bytes: int) -> None:
            nonlocal total_bytes
            total_bytes = all_bytes
            progress.update(task, completed=done_bytes, total=all_bytes)

        loaded: tuple[Any, Any] = load(files, progress=show, **options.load)
    seconds = time.perf_counter() - started
    console.print(f"loaded {options.model}: {format_bytes(total_bytes)} in {seconds:.1f} s")
    console.print(loaded[0].ktitan.plan.summary(rule_notes=False))
    return loaded


def save_profile(model: Any, options: ChatOptions) -> None:
    """At the end: add this session to the profile of `--profile`, if there is one and anything was streamed.

    Raises:
        KtitanError: as `model.ktitan.save_profile`.
    """
    if options.load.get("profile") is not None and model.ktitan.store_stats() is not None:
        model.ktitan.save_profile()
