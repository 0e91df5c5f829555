"""The result of reading rule files: frozen data that the plan applies to a module tree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ktitan.errors import Fault
from ktitan.rules.match import Match
from ktitan.rules.nodes import Location

__all__ = ["KEEP", "PLACEMENT_KEYS", "TIERS", "Note", "Replace", "Rule", "RuleSet"]

PLACEMENT_KEYS = ("device", "home", "tier")
TIERS = ("vram", "ram", "nvme")
KEEP = "keep"


@dataclass(frozen=True)
class Replace:
    """What a matched module becomes.

    Attributes:
        operator: a name that is looked up among the registered operators later, or `"keep"`.
        kwargs: what is given to the operator's `Config`; plain values, without the placement keys.
        placement: those of `PLACEMENT_KEYS` that are given, values checked.
        location: where the operator is named (in a Python structure: the replace mapping).
        kwarg_lines: line of each kwarg and placement key, in `location.file`; 0 in a Python structure.
        others: operators to take in turn where those before them do not support a module; `"keep"` may be the last.
    """

    operator: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    placement: Mapping[str, str] = field(default_factory=dict)
    location: Location = field(default_factory=lambda: Location("rules"), compare=False)
    kwarg_lines: Mapping[str, int] = field(default_factory=dict, compare=False)
    others: tuple[str, ...] = ()

    @property
    def operators(self) -> tuple[str, ...]:
        """`operator` and the others, in the order of preference."""
        return (self.operator, *self.others)

    @property
    def candidates(self) -> tuple[str, ...]:
        """`operators` without a `"keep"` behind them."""
        return self.operators[:-1] if self.others and self.may_keep else self.operators

    @property
    def may_keep(self) -> bool:
        """Whether a module that no operator supports stays stock, or all do."""
        return self.operators[-1] == KEEP

    def kwarg_location(self, name: str) -> Location:
        """Where a kwarg or placement key stands; the operator's place for one that is not given."""
        return Location(self.location.file, self.kwarg_lines.get(name, self.location.line))


@dataclass(frozen=True)
class Rule:
    """One entry of `rules:`.

    Attributes:
        match: which modules it is about.
        replace: what they become.
        prefill: what runs instead during prefill. It holds what is written there and no more: a placement key or kwarg
            that it lacks is for the plan to take from `replace`.
        source: name of the weight source, one of `weights=[...]`.
        optional: matching no module is fine.
        recursive: rules also apply below a replaced module that keeps its children; false: nothing below is matched.
        location: where the entry begins.
    """

    match: Match
    replace: Replace
    prefill: Replace | None = None
    source: str | None = None
    optional: bool = False
    recursive: bool = True
    location: Location = field(default_factory=lambda: Location("rules"), compare=False)

    @property
    def label(self) -> str:
        """The rule in one line, for tables and messages."""
        return f"{self.match} -> {' or '.join(self.replace.operators)}"


@dataclass(frozen=True)
class Note:
    """A remark on rules that can be used: what is done in another way than they say, and where they say it."""

    message: str
    places: tuple[Location, ...]

    def __str__(self) -> str:
        first, *others = self.places
        lines = [str(place.line) if place.file == first.file and place.line else str(place) for place in others]
        return f"{', '.join([str(first), *lines])}: {self.message}"


@dataclass(frozen=True)
class RuleSet:
    """The rules of a file and all that it includes, in the order in which they are tried.

    Two sets are equal when they say the same, wherever they stand.

    Attributes:
        rules: the rules without a fault.
        origin: the file, or the name that the caller gave to a text or structure.
        faults: everything that is wrong, by file and line; the rules are fit for use only when this is empty.
        notes: what the rules of a KTransformers file mean here, where that is not the same.
    """

    rules: tuple[Rule, ...]
    origin: str = field(compare=False)
    faults: tuple[Fault, ...] = ()
    notes: tuple[Note, ...] = field(default=(), compare=False)
