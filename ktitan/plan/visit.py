"""Walks a module tree and says which rule matches which module, and where each module computes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from ktitan.plan.devices import whole_name
from ktitan.registry import operators
from ktitan.rules import Rule

__all__ = ["Tally", "Visit", "class_names", "placed", "visit_modules"]


@dataclass(frozen=True)
class Visit:
    """One module of the tree.

    Attributes:
        path: dotted path, "" for the root.
        module: the module.
        rule: the first rule that matches, or None.
        placement: "device" and "home" as set here or by the nearest matched ancestor.
        parent: path of the parent module.
        covered_by: path of the replaced ancestor that takes this module over as a whole, or "".
    """

    path: str
    module: nn.Module
    rule: Rule | None
    placement: Mapping[str, str]
    parent: str
    covered_by: str


@dataclass
class Tally:
    """What became of one rule: modules it decided, and those that an earlier rule or a replaced parent took."""

    decided: int = 0
    taken: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class _Region:
    """What a module passes to those below it."""

    placement: Mapping[str, str]
    closed_by: str = ""  # why no rule applies here: which rule closed the region, as `file:line`
    covered_by: str = ""


class _Walk:
    def __init__(self, rules: Sequence[Rule], seeds: Mapping[str, torch.device]) -> None:
        self.rules = rules
        self.seeds = seeds
        self.tallies = [Tally() for _ in rules]
        self.visits: list[Visit] = []
        self.aliases: list[tuple[str, str]] = []
        self._seen: dict[int, str] = {}
        self._class_names: dict[type, tuple[tuple[str, str], ...]] = {}

    def descend(self, path: str, module: nn.Module, parent: str, region: _Region) -> None:
        if id(module) in self._seen:
            self.aliases.append((path, self._seen[id(module)]))
            return
        self._seen[id(module)] = path
        rule = self._match(path, module, region) if path else None
        placement = dict(region.placement)
        if path in self.seeds:
            placement = {"device": str(self.seeds[path])}
        if rule is not None:
            placement = placed(placement, rule.replace.placement)
        self.visits.append(Visit(path, module, rule, placement, parent, region.covered_by))
        below = self._region_below(path, rule, placement, region)
        for name, child in module._modules.items():  # named_children() would hide the second name of a shared child
            if child is not None:
                self.descend(f"{path}.{name}" if path else name, child, path, below)

    def _match(self, path: str, module: nn.Module, region: _Region) -> Rule | None:
        kind = type(module)
        if kind not in self._class_names:
            self._class_names[kind] = class_names(kind)
        mro = self._class_names[kind]
        chosen: Rule | None = None
        for rule, tally in zip(self.rules, self.tallies, strict=True):
            if not rule.match.hits(path, mro):
                continue
            if region.closed_by:
                tally.taken.append((path, region.closed_by))
            elif chosen is not None:
                tally.taken.append((path, str(chosen.location)))
            else:
                chosen = rule
                tally.decided += 1
        return chosen

    def _region_below(self, path: str, rule: Rule | None, placement: Mapping[str, str], region: _Region) -> _Region:
        if rule is None:
            return _Region(placement, region.closed_by, region.covered_by)
        replaces = rule.replace.operator != "keep"
        operator = operators.find(rule.replace.operator)
        # A name that is not registered is a fault of its own; it should not hide the rules for what is below.
        covers = replaces and operator is not None and not operator.keeps_children
        closed = str(rule.location) if covers or not rule.recursive else region.closed_by
        return _Region(placement, closed, path if covers else region.covered_by)


def class_names(kind: type) -> tuple[tuple[str, str], ...]:
    """(name, dotted path) of a class and its bases, also by the shorter paths under which packages offer them.

    `torch.nn.modules.linear.Linear` is `torch.nn.Linear` to everybody. Only modules that are loaded are looked at.
    """
    names = []
    for base in kind.__mro__:
        home = base.__module__.split(".")
        for length in range(len(home), 0, -1):
            package = ".".join(home[:length])
            if length == len(home) or vars(sys.modules.get(package, object)).get(base.__name__) is base:
                names.append((base.__name__, f"{package}.{base.__qualname__}"))
    return tuple(names)


def visit_modules(
    model: nn.Module, rules: Sequence[Rule], default: Mapping[str, str], seeds: Mapping[str, torch.device]
) -> tuple[list[Visit], list[Tally], list[tuple[str, str]]]:
    """Every module once, parents first; a tally for each rule; and (second path, first path) of modules with two paths.

    Args:
        model: the tree.
        rules: in order; the first that matches a module decides.
        default: the placement of the root.
        seeds: devices that a budget fill chose for whole subtrees; a rule's own placement wins over them.
    """
    walk = _Walk(rules, seeds)
    walk.descend("", model, "", _Region(dict(default)))
    return walk.visits, walk.tallies, walk.aliases


def placed(inherited: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """A rule's placement over the inherited one; a new device voids an inherited home, which belonged to the old."""
    base = {} if "device" in own else dict(inherited)
    return {**base, **own, **({"device": whole_name(own["device"])} if "device" in own else {})}
