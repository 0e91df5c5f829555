"""What a plan is: one row a module, the decisions behind the rows, bytes per tier, and everything that is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from ktitan.errors import (
    BudgetError,
    Fault,
    HardwareError,
    KtitanError,
    PlanError,
    RuleError,
    UnsupportedError,
    WeightError,
)
from ktitan.kv_formats import AS_COMPUTED
from ktitan.operator import Operator, OperatorContext, StreamNeed
from ktitan.plan.fold import FoldedRow, fold_rows
from ktitan.rules import Rule
from ktitan.tiers import Budget, format_bytes
from ktitan.tiers.options import CacheOptions
from ktitan.tiers.pools import CacheNeed
from ktitan.tiers.profile import ProfileFile
from ktitan.weights.adapter import Adapter
from ktitan.weights.binding import WeightMap

__all__ = ["Choice", "Decision", "Hop", "Plan", "PlanRow"]


@dataclass(frozen=True)
class PlanRow:
    """One module.

    Attributes:
        path: dotted path.
        module: class name of the stock module.
        rule: `file:line` of the rule that decided, "" where none matched.
        operator: registered name, "keep" for a stock module, "hop" for a device change.
        format: how the numbers are held once loaded.
        tier: "vram", "ram" or "nvme".
        device: where it computes.
        bytes: what it holds in its tier; in nvme: what is streamed from files.
        kernel: what computes it ("torch", "stock", ...).
        notes: anything else worth knowing.
        resident_bytes: what a streamed module holds in RAM all the same: biases, a LoRA adapter.
    """

    path: str
    module: str
    rule: str
    operator: str
    format: str
    tier: str
    device: str
    bytes: int
    kernel: str
    notes: str = ""
    resident_bytes: int = 0


@dataclass(frozen=True)
class Choice:
    """An operator with its validated config at one place; `refused`: why operators before it in the rule are not it."""

    operator: type[Operator]
    config: Any
    context: OperatorContext
    refused: tuple[str, ...] = ()


@dataclass(frozen=True)
class Decision:
    """One module to replace: the operator (for decode, when `prefill` is given), and that for prefill."""

    path: str
    rule: Rule
    choice: Choice
    prefill: Choice | None = None


@dataclass(frozen=True)
class Hop:
    """A module that computes on another device than its parent: inputs are moved in, outputs back if `returns`."""

    path: str
    parent_device: torch.device
    device: torch.device
    returns: bool


@dataclass
class Plan:
    """The result of rules x module tree x headers x budget; nothing has been read or changed.

    Attributes:
        rows: one row a module that holds or replaces something, and one a device hop.
        decisions: the replacements, parents before children.
        devices: compute device of each kept module that holds tensors.
        hops: device changes.
        weights: which stored tensors fill what; None for a plan without sources.
        adapter: the LoRA adapter to apply, or None.
        totals: planned bytes by tier: weights, KV and workspace together.
        parts: the same bytes by tier and use: {"ram": {"weights": ..., "kv": ..., "workspace": ...}}; "cache" in ram is
            what streamed weights are computed from.
        streams: what each streamed module wants, in the order of use.
        cache: what they want together; None when nothing is streamed.
        cache_options: who stays in it, and what is read early.
        profile: the file with what earlier sessions chose; None: neither used nor saved.
        limits: bytes allowed by tier.
        context_tokens: tokens that the KV cache is planned for.
        kv_format: how it stores keys and values (`ktitan.kv_formats`).
        chunk_tokens: tokens of a prompt in one forward pass, unless the caller says otherwise.
        origin: where the rules come from.
        notes: remarks about the whole.
        rule_notes: those of them that come with the rules: what a KTransformers file means here in another way.
        problems: everything that is wrong, by class of error.
    """

    rows: list[PlanRow] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    devices: dict[str, torch.device] = field(default_factory=dict)
    hops: list[Hop] = field(default_factory=list)
    weights: WeightMap | None = None
    adapter: Adapter | None = None
    parts: dict[str, dict[str, int]] = field(default_factory=dict)
    streams: list[StreamNeed] = field(default_factory=list)
    cache: CacheNeed | None = None
    cache_options: CacheOptions = field(default_factory=CacheOptions)
    profile: ProfileFile | None = None
    limits: dict[str, int] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    context_tokens: int = 0
    kv_format: str = AS_COMPUTED
    chunk_tokens: int = 512
    origin: str = ""
    notes: list[str] = field(default_factory=list)
    rule_notes: tuple[str, ...] = ()
    problems: dict[type[KtitanError], list[Fault]] = field(default_factory=dict)

    @property
    def totals(self) -> dict[str, int]:
        """Planned bytes by tier."""
        return {tier: sum(uses.values()) for tier, uses in self.parts.items()}

    @property
    def cache_bytes(self) -> int:
        """Bytes of RAM for streamed weights."""
        return self.parts.get("ram", {}).get("cache", 0)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Everything that is wrong, rules first, each kind in the order of files and lines."""
        return tuple(fault for kind in _ORDER for fault in sorted(self.problems.get(kind, ()), key=_place))

    def folded_rows(self) -> list[FoldedRow]:
        """The rows for people; see `ktitan.plan.fold`."""
        return fold_rows(self.rows)

    def add_problem(self, kind: type[KtitanError], faults: Sequence[Fault]) -> None:
        """Note faults of one kind."""
        if faults:
            self.problems.setdefault(kind, []).extend(faults)

    def check(self) -> None:
        """Raise everything that is wrong as one error.

        Raises:
            RuleError, WeightError, UnsupportedError, HardwareError, PlanError, BudgetError: the first kind in this
                order that has a fault; the error's `faults` hold those of all kinds.
        """
        for kind in _ORDER:
            if self.problems.get(kind):
                faults = self.faults
                raise kind.from_faults(faults, f"{len(faults)} faults; nothing was loaded")

    def summary(self, rule_notes: bool = True) -> str:
        """A few lines: what replaces what, bytes by tier against their limits, and the notes.

        Args:
            rule_notes: also those that come with the rules, which were logged when the plan was made.
        """
        counts: dict[str, int] = {}
        for row in self.rows:
            counts[row.operator] = counts.get(row.operator, 0) + 1
        lines = [f"rules: {self.origin}"]
        lines.append("modules: " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
        packed = [row for row in self.rows if row.operator.endswith((".cpu", ".streamed"))]
        kernels = dict.fromkeys(row.kernel.split()[0] for row in packed)
        if kernels:
            lines.append(f"CPU kernels: {', '.join(kernels)}")
        if self.kv_format != AS_COMPUTED:
            lines.append(f"KV cache: {self.kv_format}")
        lines += [self._tier_line(tier, uses) for tier, uses in self.parts.items()]
        said = () if rule_notes else self.rule_notes
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes if note not in said)])

    def _tier_line(self, tier: str, uses: Mapping[str, int]) -> str:
        """Bytes of a tier against its limit; of the drive, how much of what is streamed the cache can hold."""
        detail = "(" + ", ".join(f"{use} {format_bytes(size)}" for use, size in uses.items()) + ")"
        if tier == "nvme" and self.cache is not None:
            share = int(100 * min(1.0, self.cache_bytes / max(1, self.cache.all_bytes)))
            detail = f"streamed, cache {format_bytes(self.cache_bytes)} in ram holds {share} %"
        limit = f" of {format_bytes(self.limits[tier])}" if tier in self.limits else ""
        return f"{tier}: {format_bytes(sum(uses.values()))}{limit} {detail}"

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data."""
        return {
            "rules": self.origin,
            "context_tokens": self.context_tokens,
            "kv_format": self.kv_format,
            "tiers": {
                tier: {**uses, "total": sum(uses.values()), "limit": self.limits.get(tier)}
                for tier, uses in self.parts.items()
            },
            "cache": None if self.cache is None else {"bytes": self.cache_bytes, **asdict(self.cache)},
            "rows": [asdict(row) for row in self.rows],
            "notes": list(self.notes),
            "faults": [asdict(fault) for fault in self.faults],
        }


def _place(fault: Fault) -> tuple[str, int]:
    """Sort key of `file:line`; places without a line keep their order."""
    file, _, line = fault.where.rpartition(":")
    return (file, int(line)) if line.isdigit() else (fault.where, 0)


_ORDER: tuple[type[Any], ...] = (
    RuleError,
    WeightError,
    UnsupportedError,
    HardwareError,
    PlanError,
    BudgetError,
)
