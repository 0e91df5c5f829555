"""A native model at the path: index, headers and every checksum."""

from __future__ import annotations

from pathlib import Path

from ktitan.doctor.finding import Finding, Report
from ktitan.errors import KtitanError

__all__ = ["native_model"]


def native_model(path: Path | None) -> Report:
    """The section "native model" with a line for each fault, where there is one at `path`; else nothing."""
    if path is None or not path.is_dir():
        return {}
    from ktitan.weights.native_format import is_native

    try:
        return {"native model": _findings(path)} if is_native(path) else {}
    except KtitanError as error:
        return {"native model": [Finding("records", str(error.faults[0]), "error", error.faults[0].remedy)]}


def _findings(path: Path) -> list[Finding]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from ktitan.api import native_faults

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    rates = (TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, *rates, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("checksums", total=None)
        count, faults = native_faults(path, lambda done, total: bar.update(task, completed=done, total=total))
    if not faults:
        return [Finding("records", f"{count}, all with the checksums that they were written with")]
    return [
        Finding(Path(fault.where).name or "model", f"{fault.where}: {fault.message}", "error", fault.remedy)
        for fault in faults
    ]
