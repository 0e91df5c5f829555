"""Another budget for a model that is loaded: its weights and workspace stay, KV and the cache share what is left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from ktitan.errors import BudgetError, Fault
from ktitan.hardware import detect_memory
from ktitan.plan.cache import headroom
from ktitan.plan.kv import paged
from ktitan.plan.rows import Plan
from ktitan.tiers import Budget, format_bytes

__all__ = ["KVPlan", "NewShares", "carry_over", "share_again"]

_PAGE_TOKENS = paged(1)


@dataclass(frozen=True)
class KVPlan:
    """What the KV cache got when the model was planned: bytes by tier, for so many tokens."""

    bytes: Mapping[str, int]
    context_tokens: int

    @classmethod
    def of(cls, plan: Plan) -> KVPlan:
        """That of a plan that was just made."""
        return cls({tier: uses["kv"] for tier, uses in plan.parts.items() if uses["kv"]}, plan.context_tokens)

    @property
    def pages(self) -> int:
        """Pages of 64 tokens."""
        return paged(self.context_tokens) // _PAGE_TOKENS


@dataclass(frozen=True)
class NewShares:
    """What changes with a budget.

    Attributes:
        budget: with the limits of before where the new one says nothing.
        limits: bytes allowed by tier.
        kv: bytes for the KV cache by tier.
        context_tokens: tokens that it holds.
        cache_bytes: for streamed weights.
    """

    budget: Budget
    limits: Mapping[str, int]
    kv: Mapping[str, int]
    context_tokens: int
    cache_bytes: int

    def enter(self, plan: Plan) -> None:
        """Make `plan` say so; whoever holds its dicts sees it."""
        plan.budget, plan.context_tokens = self.budget, self.context_tokens
        plan.limits.update(self.limits)
        for tier, size in self.kv.items():
            plan.parts[tier]["kv"] = size
        if plan.cache is not None:
            plan.parts["ram"]["cache"] = self.cache_bytes


def carry_over(before: Budget, asked: Budget) -> Budget:
    """`asked`, and the limits of `before` for tiers that it does not name."""
    names = [field.name for field in fields(Budget)]
    return Budget(**{name: value for name in names if (value := _first(asked, before, name)) is not None})


def share_again(plan: Plan, kv: KVPlan, asked: Budget, held_bytes: int, least_cache: int) -> NewShares:
    """Share a new budget out: the cache gets what is left beside the planned KV. Where that is too little, KV has fewer
    whole pages, at least one and those that live caches hold.

    Args:
        plan: the one that was carried out, with what was shared out before.
        kv: what KV had at first.
        asked: the new budget.
        held_bytes: of KV, that cannot be given back.
        least_cache: the smallest cache that streamed weights can be computed from; 0 where nothing is streamed.

    Raises:
        BudgetError: a tier is too small even so, with all numbers.
    """
    budget = carry_over(plan.budget, asked)
    limits = {tier: limit for tier in plan.parts if (limit := _limit(plan, budget, tier)) is not None}
    fixed = {
        tier: sum(size for use, size in uses.items() if use not in ("kv", "cache")) for tier, uses in plan.parts.items()
    }
    least = {tier: least_cache if "cache" in uses else 0 for tier, uses in plan.parts.items()}
    room = {tier: limit - fixed[tier] - least[tier] for tier, limit in limits.items()}
    pages = _pages(kv, room, held_bytes)
    shares = {tier: -(-size * pages // kv.pages) for tier, size in kv.bytes.items()}
    faults = [
        _too_small(plan, tier, limits[tier], shares.get(tier, 0), least[tier])
        for tier in limits
        if shares.get(tier, 0) > room[tier]
    ]
    if faults:
        raise BudgetError.from_faults(faults, f"{len(faults)} tiers are too small; nothing has changed")
    cache = 0 if plan.cache is None else plan.cache.all_bytes
    if cache and "ram" in limits:
        left = limits["ram"] - headroom(budget, limits["ram"]) - fixed["ram"] - shares.get("ram", 0)
        cache = max(least["ram"], min(cache, left))
    _refuse_more_than_there_is(fixed.get("ram", 0) + shares.get("ram", 0) + cache)
    tokens = kv.context_tokens if pages == kv.pages else pages * _PAGE_TOKENS
    return NewShares(budget, limits, shares, tokens, cache)


def _pages(kv: KVPlan, room: Mapping[str, int], held_bytes: int) -> int:
    """Pages of KV: as planned, or as many as all tiers have room for, but not fewer than are held."""
    total = sum(kv.bytes.values())
    if not total or not kv.pages:
        return kv.pages
    fitting = [room[tier] * kv.pages // size for tier, size in kv.bytes.items() if tier in room]
    return max(min([kv.pages, *fitting]), -(-held_bytes * kv.pages // total), 1)


def _limit(plan: Plan, budget: Budget, tier: str) -> int | None:
    asked = budget.limit(tier)
    return plan.limits.get(tier) if asked is None else asked


def _first(asked: Budget, before: Budget, name: str) -> int | None:
    value: int | None = getattr(asked, name)
    other: int | None = getattr(before, name)
    return other if value is None else value


def _too_small(plan: Plan, tier: str, limit: int, kv_bytes: int, least_cache: int) -> Fault:
    uses = {use: size for use, size in plan.parts[tier].items() if use not in ("kv", "cache")}
    uses |= {"kv": kv_bytes} | ({"cache": least_cache} if least_cache else {})
    detail = ", ".join(f"{use} {format_bytes(size)}" for use, size in uses.items())
    message = (
        f"{tier}: needs at least {format_bytes(sum(uses.values()))} ({detail}), the budget allows {format_bytes(limit)}"
    )
    return Fault(message, plan.origin, "raise the budget, or end answers that hold keys and values")


def _refuse_more_than_there_is(wanted: int) -> None:
    """A plan may be for another machine; a model that is loaded is on this one."""
    memory = detect_memory()
    there = min(memory.total_bytes, memory.limit_bytes or memory.total_bytes)
    if there and wanted > there:
        raise BudgetError(
            f"ram: needs {format_bytes(wanted)}, this machine or its control group has {format_bytes(there)} in all",
            "budget",
            "give a smaller ram budget",
        )
