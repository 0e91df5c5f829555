"""Options under the names that people know from llama.cpp and KTransformers: one table, and what each becomes.

They are here where they mean the same; each says on stderr which option it became, and placements which rules (see
`ktitan.api.placing`). An option of ktitan that has the same name there (`--seed`, `--chunk_size`) needs no row.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import typer

__all__ = ["KNOWN", "PLACING", "takes_known_names"]

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


@dataclass(frozen=True)
class Known:
    """One option of another program.

    Attributes:
        flags: its names there.
        target: parameter of our command that means the same.
        kind: type of its value.
        at_least: least value.
        read: its value as ours.
        both: what two options of the same meaning make together; None: they cannot be given together.
    """

    flags: tuple[str, ...]
    target: str
    kind: type = int
    at_least: float = 1
    read: Callable[[Any], Any] = lambda value: value
    both: Callable[[Any, Any], Any] | None = None

    @property
    def parameter(self) -> str:
        """A parameter's name for it."""
        return _parameter(self.flags)

    @property
    def option(self) -> str:
        """Our option's name."""
        return f"--{self.target.replace('_', '-')}"


def _parameter(flags: tuple[str, ...]) -> str:
    return next(flag for flag in flags if flag.startswith("--")).lstrip("-").replace("-", "_")


KNOWN = (
    Known(("--temp",), "temperature", float, 0),
    Known(("--repeat-penalty",), "repetition_penalty", float, 0.01),
    Known(("-n", "--n-predict", "--predict"), "max_new_tokens"),
    Known(("--ctx-size",), "context", int, 0, lambda value: value or None),  # 0: what the model has
    Known(("-ub", "--ubatch-size"), "chunk_size"),
    Known(("-b", "--batch-size"), "chunk_size", both=min),  # llama.cpp's micro-batch is the smaller of both
    Known(("--cpu-infer",), "threads"),
)

# What becomes rules: the flags, the type, the help.
PLACING: dict[str, Any] = {
    "n_gpu_layers": Annotated[
        str | None,
        typer.Option("-ngl", "--n-gpu-layers", "--gpu-layers", metavar="N", help="llama.cpp: the last N layers on the "
                     "GPU, the output being one; or all, auto."),
    ],
    "n_cpu_moe": Annotated[
        int | None,
        typer.Option("-ncmoe", "--n-cpu-moe", min=0, metavar="N", help="llama.cpp: routed experts of the first N "
                     "layers on the CPU."),
    ],
    "cpu_moe": Annotated[
        bool, typer.Option("-cmoe", "--cpu-moe", help="llama.cpp: all routed experts on the CPU.")
    ],
    "override_tensor": Annotated[
        list[str] | None,
        typer.Option("-ot", "--override-tensor", metavar="REGEX=DEVICE", help="llama.cpp: modules by the GGUF names of "
                     "their tensors; may be given again."),
    ],
}  # fmt: skip


def takes_known_names(command: CommandT) -> CommandT:
    """Give a command the rows of `KNOWN` whose targets it has, and placements where it takes rules."""
    own = inspect.signature(command, eval_str=True).parameters
    rows = [row for row in KNOWN if row.target in own]
    places = PLACING if "rules" in own else {}

    @functools.wraps(command)
    def renamed(**options: Any) -> Any:
        placing = {name: options.pop(name, None) for name in places}
        given = [(row, options.pop(row.parameter, None)) for row in rows]
        chosen: dict[str, str] = {}
        for row, value in given:
            if value is not None:
                _rename(row, value, options, own[row.target].default, chosen)
        if places:
            options["rules"] = _placed(options["rules"], **placing)
        return command(**options)

    extra = [_keyword(row.parameter, _annotation(row)) for row in rows]
    extra += [_keyword(name, annotation, False if name == "cpu_moe" else None) for name, annotation in places.items()]
    ours = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own.values()]
    renamed.__signature__ = inspect.Signature([*ours, *extra])  # type: ignore[attr-defined]
    return renamed  # type: ignore[return-value]


def _rename(row: Known, value: Any, options: dict[str, Any], usual: Any, chosen: dict[str, str]) -> None:
    """Set our option from a known one, and say so."""
    flag, read = row.flags[-1] if len(row.flags) == 1 else row.flags[0], row.read(value)
    if row.target in chosen and row.both is not None:
        read = row.both(options[row.target], read)
    elif row.target in chosen or options[row.target] != usual:
        other = chosen.get(row.target, row.option)
        raise typer.BadParameter(f"{flag} and {other} are the same here; give one of them")
    chosen[row.target], options[row.target] = flag, read
    became = "its default" if read is None else read
    typer.echo(f"{flag} {value} became {row.option} {became}", err=True)


def _placed(
    rules: Any, n_gpu_layers: str | None, n_cpu_moe: int | None, cpu_moe: bool, override_tensor: list[str] | None
) -> Any:
    """The rules with the placements before them that are given."""
    if cpu_moe and n_cpu_moe is not None:
        raise typer.BadParameter("--cpu-moe is --n-cpu-moe of all layers; give one of them")
    layers = n_gpu_layers if n_gpu_layers not in (None, "auto") else None
    if layers is not None and layers != "all" and not (layers.isascii() and layers.isdigit()):
        raise typer.BadParameter(f"-ngl {layers}: give a number of layers, all or auto")
    if layers is None and not cpu_moe and n_cpu_moe is None and not override_tensor:
        return rules
    from ktitan.api import ALL_LAYERS, PlacedRules

    count = ALL_LAYERS if layers == "all" else int(layers) if layers is not None else None
    experts = ALL_LAYERS if cpu_moe else n_cpu_moe
    return PlacedRules(rules, count, experts, tuple(override_tensor or ()))


def _annotation(row: Known) -> Any:
    help_text = f"llama.cpp: {row.option}." if row.flags != ("--cpu-infer",) else f"KTransformers: {row.option}."
    return Annotated[row.kind | None, typer.Option(*row.flags, min=row.at_least, help=help_text)]


def _keyword(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
