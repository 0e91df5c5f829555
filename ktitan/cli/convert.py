"""`ktitan convert`: a model as a Titan Native directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ktitan.local_chat.arguments import MODEL_HELP

__all__ = ["convert"]


def convert(
    source: Annotated[str, typer.Argument(metavar="SRC", help=MODEL_HELP)],
    destination: Annotated[Path, typer.Argument(metavar="DST", help="New folder, or one where this did not end.")],
    stripe: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR", help="Folder on a further drive: records are cut over DST and it. May be repeated."
        ),
    ] = None,
) -> None:
    """Write SRC as a Titan Native directory: one aligned read a record, a checksum each. DST is a MODEL then.

    Tensors whose rows are stored whole keep their format; others are computed and written dense. After Ctrl-C, a kill
    or a full drive the same command goes on.
    """
    from ktitan.cli.progress import Steps
    from ktitan.convert import convert_model
    from ktitan.tiers import format_bytes

    typer.echo(f"looking at {source}", err=True)
    with Steps() as steps:
        made = convert_model(source, destination, stripes=stripe or (), progress=steps.show)
    kept = f", {format_bytes(made.kept_bytes)} of them there before" if made.kept_bytes else ""
    typer.echo(f"{made.path}: {made.records} records in {made.files} files, {format_bytes(made.nbytes)}{kept}")
