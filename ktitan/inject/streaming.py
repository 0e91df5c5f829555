"""The store of a model that streams: made before loading, opened after it, closed when the injection is taken back."""

from __future__ import annotations

from collections.abc import Callable

from ktitan.plan.rows import Plan
from ktitan.tiers.store import StoreLimits, TierStore
from ktitan.weights.binding import WeightMap
from ktitan.weights.files import FileStamp
from ktitan.weights.source import FileSource

__all__ = ["make_store", "open_store", "read_bytes"]

Progress = Callable[[int, int], None]


def make_store(plan: Plan) -> TierStore | None:
    """An empty store where the plan streams anything."""
    return TierStore() if plan.streams else None


def open_store(store: TierStore, plan: Plan, weights: WeightMap, progress: Progress | None = None) -> None:
    """Give the store its share of the budget, and the files as they were when their headers were read.

    Args:
        store: with all records.
        plan: the budget, and the profile to begin with.
        weights: the sources.
        progress: sees the bytes that the profile has read, after those that loading read.

    Raises:
        BudgetError, IoError, UnsupportedError: as `TierStore.open` and `TierStore.start_from`.
    """
    stamps: dict[str, FileStamp] = {}
    for source in weights.sources:
        if isinstance(source, FileSource):
            stamps.update(source.stamps)
    store.open(StoreLimits(plan.cache_bytes, options=plan.cache_options, chunk_tokens=plan.chunk_tokens), stamps)
    if plan.profile is not None and plan.profile.found is not None:
        already = read_bytes(plan, weights)

        def count(done: int, total: int) -> None:
            if progress is not None:
                progress(already + done, already + total)

        store.start_from(plan.profile.found, str(plan.profile.path), count)


def read_bytes(plan: Plan, weights: WeightMap) -> int:
    """Stored bytes that loading reads: all but the matrices that are streamed."""
    streamed = {decision.path for decision in plan.decisions if decision.choice.operator.streams}
    sizes = [
        expression.stored_bytes
        for name, expression in weights.bindings.items()
        if len(expression.shape) < 2 or name.rpartition(".")[0] not in streamed
    ]
    return sum(sizes)
