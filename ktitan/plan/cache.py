"""The share of RAM that streamed weights are computed from: what the limit leaves beside everything else."""

from __future__ import annotations

from ktitan.plan.rows import Plan
from ktitan.tiers import Budget, format_bytes
from ktitan.tiers.pools import cache_need

__all__ = ["add_cache", "cache_hint", "headroom"]

# What stays free where nobody set a budget: other programs were not asked.
HEADROOM_SHARE = 0.1
LEAST_HEADROOM_BYTES = 512 << 20


def add_cache(plan: Plan, uses: dict[str, int], limit: int | None) -> None:
    """Fill `plan.cache` and the "cache" of RAM's `uses`.

    At most what keeps every record, at least what streaming cannot do without: below that the sum passes the limit,
    which is a fault of the plan like any other.

    Args:
        plan: with its streams.
        uses: bytes of RAM by use.
        limit: bytes of RAM that are allowed, or None.
    """
    experts = [size for stream in plan.streams for size in stream.expert_slots]
    dense = [size for stream in plan.streams for size in stream.dense_slots]
    rows = [size for stream in plan.streams for size in stream.row_bytes]
    need = cache_need(experts, dense, rows)
    plan.cache = need
    room = need.all_bytes if limit is None else limit - headroom(plan.budget, limit) - sum(uses.values())
    uses["cache"] = max(need.least_bytes, min(need.all_bytes, room))


def headroom(budget: Budget, limit: int) -> int:
    """Bytes of the RAM `limit` that stay free."""
    return max(LEAST_HEADROOM_BYTES, int(limit * HEADROOM_SHARE)) if budget.limit("ram") is None else 0


def cache_hint(plan: Plan) -> str:
    """How much of what is needed is for streaming, at the end of a sentence."""
    if plan.cache is None:
        return ""
    return f"; streamed weights need a cache of at least {format_bytes(plan.cache.least_bytes)}"
