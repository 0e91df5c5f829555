"""`ktitan pull`: a model from the hub into the cache."""

from __future__ import annotations

import json as json_format
from typing import Annotated

import typer

__all__ = ["HubModel", "Revision", "pull"]

HubModel = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="Hub id: org/name, org/name@revision, org/name:Q4_K_M, or org/name/file.gguf."
    ),
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit, as after the @ of MODEL.")]


def pull(
    model: HubModel,
    revision: Revision = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object with path, commit and sizes.")] = False,
) -> None:
    """Download MODEL from the hub, weights too, and say where it is and how large.

    What is cached stays; after Ctrl-C or a lost connection, the same command goes on with the files that are missing.
    """
    from ktitan.hub.fetch import fetch
    from ktitan.hub.names import read_name
    from ktitan.tiers import format_bytes

    name = read_name(model, revision)
    typer.echo(f"looking at {name}", err=True)
    found = fetch(name)
    path = found.folder / found.gguf if found.gguf else found.folder
    size = sum(found.files.values())
    if json:
        numbers = {"files": len(found.files), "bytes": size, "downloaded_bytes": found.downloaded_bytes}
        report = {"model": str(name), "commit": found.commit, "path": str(path), **numbers}
        typer.echo(json_format.dumps(report, indent=2, ensure_ascii=False))
        return
    new = f"{format_bytes(found.downloaded_bytes)} of it new" if found.downloaded_bytes else "all of it cached before"
    typer.echo(f"{path}\n{name}: {len(found.files)} files, {format_bytes(size)}, {new}")
