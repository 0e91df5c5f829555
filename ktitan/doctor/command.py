"""`ktitan doctor`."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["doctor"]


def doctor(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="PATH", exists=True, help="Where models lie, or a native model to check; default: the hub's cache."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Report what of this machine and installation ktitan can use, with a remedy for what is in its way.

    A native model at PATH (ktitan convert) is read whole, and every checksum compared. The report names no user, host,
    home folder, token or address. Exit code 1 when ktitan cannot work here, or the model is damaged.
    """
    from ktitan.doctor.finding import redacted, to_json, to_text
    from ktitan.doctor.gpu import gpu
    from ktitan.doctor.kernels import kernels
    from ktitan.doctor.limits import limits
    from ktitan.doctor.native_model import native_model
    from ktitan.doctor.redact import redactor
    from ktitan.doctor.storage import storage
    from ktitan.doctor.versions import versions

    sections = {"versions": versions(), "cpu kernels": kernels(), "limits": limits(), "storage": storage(path)}
    report = redacted({**sections, "gpu": gpu(), **native_model(path)}, redactor())
    facts = to_json(report)
    typer.echo(json_format.dumps(facts, indent=2, ensure_ascii=False) if json else to_text(report))
    if not facts["usable"]:
        raise typer.Exit(1)
