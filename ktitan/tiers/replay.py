"""A trace against caches of several sizes and policies, and against one that knows the future.

The store's own decisions on what was recorded, at the same memory: policies that let records pass through, and "auto",
give some of the slots up for that, as the store does without prefetch (ktitan/tiers/pools.py).

Regret is the share of a policy's misses that Belady's algorithm with bypass would not have had, (b - h) / (1 - h) of
the hit rates b and h (Belady 1966; with bypass: McFarling 1992). It is the
best for these slots of each layer; spare slots are shared by layers, so a cache with them could pass it in principle.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ktitan.errors import BudgetError, UnsupportedError
from ktitan.native import native_reason
from ktitan.native.replay import Replayed, ReplaySpec, replay, replay_optimal
from ktitan.tiers.options import CHOICES, HALF_LIFE_TOKENS, POLICIES, CacheOptions
from ktitan.tiers.pools import LEAST_SLOTS, Pooled, share_out
from ktitan.tiers.trace import Trace

__all__ = ["DEFAULT_POLICIES", "Outcome", "Size", "parse_policies", "parse_sizes", "replay_trace"]

# Without pins "pinned" is "admitting".
DEFAULT_POLICIES = ("auto", *(policy for policy in POLICIES if policy != "pinned"))
BELADY, BYPASS = "belady", "belady-bypass"

Progress = Callable[[str], None]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Size:
    """A cache: how it was asked for, and the slots of each layer (of all layers together: times their number)."""

    text: str
    slots: int


@dataclass(frozen=True)
class Outcome:
    """One policy at one size.

    Attributes:
        size: of the cache.
        policy: its name; "belady" and "belady-bypass" know the future.
        hit: [L, N, K] bool, which demands were hits.
        belady: hit rate of "belady-bypass" at this size.
        ended: the policy that decided at the end, for "auto".
        changes: how often "auto" took another one.
        passed: demands that were not admitted.
    """

    size: Size
    policy: str
    hit: np.ndarray
    belady: float
    ended: str = ""
    changes: int = 0
    passed: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of demands that were hits."""
        return float(self.hit.mean())

    @property
    def regret(self) -> float:
        """Share of the misses that were avoidable."""
        missed = 1 - self.hit_rate
        return (self.belady - self.hit_rate) / missed if missed else 0.0


def parse_sizes(text: str, experts: int) -> list[Size]:
    """`"12.5%,25%,16"`: shares of a layer's experts, or slots of a layer; each at least 1 slot.

    Raises:
        UnsupportedError: no such list, or more slots than experts.
    """
    sizes = []
    for item in (part.strip() for part in text.split(",")):
        number = item.removesuffix("%")
        try:
            value = experts * float(number) / 100 if item.endswith("%") else int(number)
        except ValueError:
            value = 0
        if not 0 < value <= experts:
            raise UnsupportedError(
                f"{item!r} is no size for {experts} experts", "slots", "write for example 12.5%,25%,16"
            )
        sizes.append(Size(item, max(round(value), 1)))
    return sizes


def parse_policies(text: str | None) -> list[str]:
    """`"lru,auto"` -> names; None: all.

    Raises:
        UnsupportedError: an unknown policy.
    """
    if text is None:
        return list(DEFAULT_POLICIES)
    names = list(dict.fromkeys(part.strip().lower() for part in text.split(",")))
    unknown = [name for name in names if name not in CHOICES["policy"]]
    if unknown:
        raise UnsupportedError(f"{unknown[0]!r} is no policy", "policy", f"choose {', '.join(CHOICES['policy'])}")
    return names


def replay_trace(
    trace: Trace,
    sizes: Sequence[Size],
    policies: Sequence[str] = DEFAULT_POLICIES,
    *,
    scope: str = "layer",
    half_life: float = HALF_LIFE_TOKENS,
    progress: Progress | None = None,
) -> list[Outcome]:
    """Every policy at every size, those that know the future first.

    Args:
        trace: what was recorded.
        sizes: of the caches.
        policies: names of `ktitan.tiers.options`.
        scope: "layer", "global" or "auto", as in `CacheOptions`.
        half_life: tokens after which a token counts half.
        progress: is told what runs, how fast, and how long the rest takes.

    Raises:
        BudgetError: fewer than two slots in all, or no memory.
        UnsupportedError: a policy that cannot be replayed.
    """
    meter = _Meter(trace.topk.size, len(sizes) * (2 + len(policies)), progress)
    if native_reason() is not None:
        _log.warning("there is no native library: the reference in Python replays, some hundred times slower")
    order = np.argsort(trace.topk, axis=2)
    ascending = replace(trace, topk=np.take_along_axis(trace.topk, order, 2))
    outcomes: list[Outcome] = []
    for size in sizes:
        best = _spec(ascending, size, CacheOptions("lru", scope, "off"))
        meter.begins(BYPASS, size)
        hit = _optimal(best, True)
        rate = float(hit.mean())
        outcomes.append(Outcome(size, BYPASS, _as_chosen(hit, order), rate))
        meter.begins(BELADY, size)
        outcomes.append(Outcome(size, BELADY, _as_chosen(_optimal(best, False), order), rate))
        for policy in policies:
            meter.begins(policy, size)
            found = _replay(_spec(ascending, size, CacheOptions(policy, scope, "off")), policy, half_life)
            changes = int((np.diff(found.policies) != 0).sum())
            ended = POLICIES[int(found.policies[-1])]
            outcomes.append(Outcome(size, policy, _as_chosen(found.hit, order), rate, ended, changes, found.passed))
    return outcomes


def _as_chosen(hit: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Hits in the order of the trace, from those of ascending experts."""
    found = np.empty_like(hit)
    np.put_along_axis(found, order, hit, 2)
    return found


def _spec(trace: Trace, size: Size, options: CacheOptions) -> ReplaySpec:
    """The cache as the store would share it out."""
    records = [Pooled(1, layer) for layer in range(trace.layers) for _ in range(trace.n_experts)]
    if size.slots * trace.layers < min(LEAST_SLOTS, len(records)):
        raise BudgetError(f"{size.text} is a cache of one slot in all", "slots", f"give {LEAST_SLOTS} slots at least")
    shares = share_out(size.slots * trace.layers, records, (), (), options)
    starts = trace.row_starts[:-1]
    return ReplaySpec(
        trace.topk, starts, trace.n_experts, shares.domain_of, shares.domain_slots, shares.pools[0].spares
    )


def _replay(spec: ReplaySpec, policy: str, half_life: float) -> Replayed:
    number = -1 if policy == "auto" else POLICIES.index(policy)
    growth = 2 ** (1 / half_life)
    if native_reason() is None:
        return replay(spec, number, growth)
    from ktitan.tiers.reference.replay import replay_reference

    return replay_reference(spec, number, growth)


def _optimal(spec: ReplaySpec, bypass: bool) -> np.ndarray:
    if native_reason() is None:
        return replay_optimal(spec, bypass)
    from ktitan.tiers.reference.optimal import optimal_reference

    return optimal_reference(spec, bypass)


class _Meter:
    """Says what runs, the rate so far, and the time left."""

    def __init__(self, demands: int, runs: int, progress: Progress | None) -> None:
        self._demands, self._runs, self._progress = demands, runs, progress
        self._began, self._done = time.perf_counter(), 0

    def begins(self, policy: str, size: Size) -> None:
        spent = time.perf_counter() - self._began
        text = f"{policy} with {size.text}: {self._done} of {self._runs}"
        if self._done:
            rate = self._done * self._demands / max(spent, 1e-9) / 1e6
            text += f", {rate:.1f} M demands/s, {spent / self._done * (self._runs - self._done):.0f} s left"
        if self._progress is not None:
            self._progress(text)
        self._done += 1
