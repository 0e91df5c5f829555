"""`ktitan bench replay F --plot OUT`: hit rate against slots, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ktitan.bench.replay import Replays
from ktitan.errors import IoError, UnsupportedError, printable
from ktitan.tiers.replay import Outcome

__all__ = ["check_plot", "plot"]

SUFFIXES = (".svg", ".png", ".pdf")
# Told apart without colour, too.
_MARKS = "osD^v<>P"
_DASHES = ("-", "--", "-.", ":")


def check_plot(path: Path) -> None:
    """Refuse before anything long begins what could not be drawn in the end.

    Raises:
        UnsupportedError: matplotlib is missing, or the suffix is unknown.
        IoError: the folder is not there.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UnsupportedError(f"{path.name} is no picture", "--plot", f"give a name with {', '.join(SUFFIXES)}")
    if not path.absolute().parent.is_dir():
        raise IoError("its folder is not there", str(path), "make the folder, or name another file")
    _figure_class()


def plot(replays: Replays, path: Path) -> None:
    """Draw every policy's hit rate over the cache's size, and Belady's.

    Raises:
        UnsupportedError: as `check_plot`.
        IoError: the picture cannot be written.
    """
    figure = _figure_class()(figsize=(7.5, 5), layout="constrained")
    axes = figure.subplots()
    about = replays.about()
    for number, policy in enumerate(dict.fromkeys(one.policy for one in replays.outcomes)):
        _line(axes, [one for one in replays.outcomes if one.policy == policy], policy, number)
    where = "a layer's own slots" if replays.scope == "layer" else f"slots shared by {replays.scope} scope"
    axes.set_title(
        "{experts} experts, {chosen} chosen, {layers} layers, {tokens:,} tokens; ".format(**about) + where, fontsize=10
    )
    title = printable(f"Hit rate on the trace of {about['model'] or 'a model'}")
    figure.suptitle(title, fontsize=12, parse_math=False)  # a path may have dollar signs
    axes.set_xlabel(f"slots a layer (of {about['experts']} experts)")
    axes.set_ylabel("hits, % of demands")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise IoError.of(error, "the picture cannot be written", path) from error


def _line(axes: Any, outcomes: Sequence[Outcome], policy: str, number: int) -> None:
    row = sorted(outcomes, key=lambda one: one.size.slots)
    best = policy.startswith("belady")
    axes.plot(
        [one.size.slots for one in row],
        [100 * one.hit_rate for one in row],
        label="Belady (knows the future)" + (", with bypass" if policy.endswith("bypass") else "") if best else policy,
        color="black" if best else f"C{number - 2}",
        linestyle=_DASHES[number % 2] if best else _DASHES[number % 4],
        marker=None if best else _MARKS[number % len(_MARKS)],
        linewidth=2.2 if policy == "auto" else 1.3,
        markersize=4,
    )


def _figure_class() -> Any:
    """matplotlib's Figure, which needs no display.

    Raises:
        UnsupportedError: it is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UnsupportedError("matplotlib is not installed", "--plot", 'pip install "ktitan[plot]"') from error
    return Figure
