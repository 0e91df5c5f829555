"""How results are shown: JSON lines for programs, a table for people; both on stdout.

The first JSON line is one object `{"machine": {...}}`; every further line is a `Result`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

from ktitan.bench.result import Result
from ktitan.hardware import Hardware

# Columns of a table that goes into a pipe or file, where no terminal says how wide it is.
PIPE_WIDTH = 200

# Below this the description of what was measured is left to --json.
WIDE = 140

__all__ = ["machine", "print_json", "print_table"]


def machine(hardware: Hardware) -> dict[str, Any]:
    """What a figure is worth nothing without: processor, CPUs used, memory, torch's version, GPUs."""
    import torch

    return {
        "cpu": hardware.cpu.name,
        "physical_cores": hardware.cpu.physical_cores,
        "usable_cpus": hardware.cpu.usable_cpus,
        "memory_total_bytes": hardware.memory.total_bytes,
        "memory_available_bytes": hardware.memory.available_bytes,
        "memory_limit_bytes": hardware.memory.limit_bytes,
        "torch": torch.__version__,
        "gpus": [gpu.name for gpu in hardware.gpus],
    }


def print_json(results: Iterable[Result], about: dict[str, Any]) -> None:
    """One line for the machine, then one for each result."""
    lines = [json.dumps({"machine": about}, ensure_ascii=False), *(result.to_json() for result in results)]
    sys.stdout.write("\n".join(lines) + "\n")


def print_table(results: Iterable[Result], about: dict[str, Any]) -> None:
    """One row for each result below the machine's description."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(_headline(about), markup=False, highlight=False)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("case", no_wrap=True)
    if console.width >= WIDE:
        table.add_column("metric")
    for title in ("value", "ceiling", "peer", "runs", "spread"):
        table.add_column(title, justify="right")
    for result in results:
        case, metric, *figures = (escape(cell) for cell in _row(result))
        table.add_row(case, *([metric] if console.width >= WIDE else []), *figures)
    console.print(table)


def _headline(about: dict[str, Any]) -> str:
    total_bytes, limit_bytes = about["memory_total_bytes"], about["memory_limit_bytes"]
    parts = [about["cpu"], f"{about['usable_cpus']} CPUs used", f"{total_bytes / 2**30:.1f} GiB"]
    if limit_bytes is not None:
        parts.append(f"limited to {limit_bytes / 2**30:.1f} GiB")
    return ", ".join([*parts, f"torch {about['torch']}", *about["gpus"]])


def _row(result: Result) -> list[str]:
    peer = f"{result.peer or ''} {_figure(result.peer_value)}".strip()
    if result.ratio_to_peer is not None:
        peer += f" ({result.ratio_to_peer:.2f} x)"
    ceiling = _figure(result.ceiling)
    if result.share_of_ceiling is not None:
        ceiling += f" ({result.share_of_ceiling:.0%})"
    runs = "" if result.runs is None else str(result.runs)
    spread = "" if result.spread is None else f"{result.spread:.1%}"
    return [result.case, result.metric, f"{_figure(result.value)} {result.unit}", ceiling, peer, runs, spread]


def _figure(value: float | None) -> str:
    """Three significant digits without an exponent."""
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
