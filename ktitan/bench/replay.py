"""`ktitan bench replay F`: what each policy would have hit on a recorded trace, and what nobody could better."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ktitan.bench.result import Result
from ktitan.errors import printable
from ktitan.tiers.options import HALF_LIFE_TOKENS
from ktitan.tiers.recall import Recall, recalls
from ktitan.tiers.replay import BYPASS, Outcome, Progress, parse_policies, parse_sizes, replay_trace
from ktitan.tiers.trace import Trace, load_trace

__all__ = ["Replays", "print_json", "print_table", "run"]


@dataclass(frozen=True)
class Replays:
    """All that was found.

    Attributes:
        trace: what was replayed.
        scope: of the caches.
        outcomes: policies at sizes.
        recalls: of predictions, where the trace has them; misses by size.
    """

    trace: Trace
    scope: str
    outcomes: tuple[Outcome, ...]
    recalls: tuple[tuple[str, Recall], ...]

    def about(self) -> dict[str, Any]:
        """What the trace is."""
        trace = self.trace
        return {
            "model": trace.model,
            "layers": trace.layers,
            "experts": trace.n_experts,
            "chosen": trace.chosen,
            "tokens": trace.tokens,
            "sequences": len(trace.row_starts) - 1,
            "scope": self.scope,
        }

    def results(self) -> Iterator[Result]:
        """One line for each figure; the ceiling is Belady's algorithm with bypass, the peer LRU."""
        lru = {one.size.text: one.hit_rate for one in self.outcomes if one.policy == "lru"}
        for one in self.outcomes:
            case = f"replay-{one.size.text}-{one.policy}"
            peer = lru.get(one.size.text) if one.policy != "lru" else None
            yield Result(
                case,
                f"hit rate, {one.size.slots} slots a layer, by {self.scope}" + _ended(one),
                one.hit_rate,
                "of demands",
                ceiling=one.belady,
                share_of_ceiling=one.hit_rate / one.belady if one.belady else None,
                peer=None if peer is None else "lru",
                peer_value=peer,
                ratio_to_peer=one.hit_rate / peer if peer else None,
                runs=1,
            )
            if one.policy != BYPASS:
                yield Result(case, "regret: avoidable misses", one.regret, "of misses", runs=1)
            if one.policy == "auto":
                yield Result(case, "changes of the policy", one.changes, "changes", runs=1)
        for of, recall in self.recalls:
            yield Result(
                f"foreseen-{of}".replace(" ", "-"), f"{recall.guesses} guesses a layer", recall.value, "of demands"
            )


def run(
    path: Path,
    *,
    slots: str = "12.5%,25%,50%",
    scope: str = "layer",
    policy: str | None = None,
    half_life: float = HALF_LIFE_TOKENS,
    progress: Progress | None = None,
) -> Replays:
    """Replay a trace.

    Args:
        path: of the trace.
        slots: sizes, shares of a layer's experts or slots of a layer.
        scope: "layer" or "global".
        policy: names with commas; None: all.
        half_life: tokens after which a token counts half.
        progress: is told what runs.

    Raises:
        FormatError, IoError: the trace cannot be read.
        UnsupportedError, BudgetError: no such policy or size.
    """
    trace = load_trace(path)
    sizes, policies = parse_sizes(slots, trace.n_experts), parse_policies(policy)
    outcomes = replay_trace(trace, sizes, policies, scope=scope, half_life=half_life, progress=progress)
    found = [(recall.of, recall) for recall in recalls(trace)]
    # Misses of what the store would do by itself, or of the first policy that was asked for.
    judge = "auto" if "auto" in policies else policies[0]
    for one in outcomes:
        if one.policy == judge:
            missed = [recall for recall in recalls(trace, one.hit) if recall.of == "misses"]
            found += [(f"misses of {judge} with {one.size.text}", recall) for recall in missed]
    return Replays(trace, scope, tuple(outcomes), tuple(found))


def print_json(replays: Replays) -> None:
    """One line for the trace, then one for each result."""
    lines = [json.dumps({"trace": replays.about()}), *(result.to_json() for result in replays.results())]
    sys.stdout.write("\n".join(lines) + "\n")


def print_table(replays: Replays) -> None:
    """Hit rates of policies by size, each with its regret, and the recall of predictions."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from ktitan.bench.report import PIPE_WIDTH

    console = Console()
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    about = replays.about()
    head = "{layers} layers of {experts} experts, {chosen} chosen, {tokens} tokens in {sequences} sequences".format(
        **about
    )
    name = printable(f"{about['model']}: ") if about["model"] else ""  # a stranger's, too
    console.print(name + head, markup=False, highlight=False)
    sizes = list(dict.fromkeys(one.size for one in replays.outcomes))
    table = Table("hits (avoidable misses); slots a layer", box=box.SIMPLE_HEAD)
    for size in sizes:
        table.add_column(f"{size.text}: {size.slots} slots", justify="right")
    for policy in dict.fromkeys(one.policy for one in replays.outcomes):
        row = [one for one in replays.outcomes if one.policy == policy]
        table.add_row(policy, *(f"{one.hit_rate:.1%} ({one.regret:.0%})" for one in row))
    console.print(table)
    for one in replays.outcomes:
        if one.policy == "auto":
            console.print(f"auto with {one.size.text}{_ended(one)}".replace(";", ":"), markup=False, highlight=False)
    _print_recalls(console, replays.recalls)


def _print_recalls(console: Any, found: Sequence[tuple[str, Recall]]) -> None:
    from rich import box
    from rich.table import Table

    if not found:
        return
    guesses = sorted({recall.guesses for _, recall in found})
    table = Table("foreseen, of demands", *(f"{count} guesses" for count in guesses), box=box.SIMPLE_HEAD)
    for name in dict.fromkeys(name for name, _ in found):
        values = {recall.guesses: f"{recall.value:.1%}" for of, recall in found if of == name}
        table.add_row(name, *(values.get(count, "") for count in guesses))
    console.print(table)


def _ended(one: Outcome) -> str:
    return f"; {one.ended} at the end, {one.changes} changes" if one.policy == "auto" else ""
