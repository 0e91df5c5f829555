"""Placements that go before the rules: a module computes where they say, as whatever the rules make of it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ktitan.rules.ktransformers.writer import rule_lines
from ktitan.rules.match import LayerSet, Match
from ktitan.rules.nodes import Location
from ktitan.rules.ruleset import KEEP, Note, Replace, Rule, RuleSet

__all__ = ["Placement", "place_first"]

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")

# (name, dotted path) of a module's class and its bases, as `Match.hits` takes them.
ClassNames = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Placement:
    """Modules that somebody places by hand.

    Attributes:
        paths: dotted paths; what is below them follows where no rule places it.
        device: `cpu` or `cuda:N`.
        location: the option that says so, for notes and faults.
    """

    paths: tuple[str, ...]
    device: str
    location: Location


def place_first(rules: RuleSet, placements: Sequence[Placement], modules: Mapping[str, ClassNames]) -> RuleSet:
    """`rules` behind those that carry out `placements`; the first placement of a module wins.

    A placed module keeps the operators and kwargs of the rule that matches it and takes the new device; its home goes,
    since that belonged to the old one. A note for each option shows the rules that it became.

    Args:
        rules: the rules as they were given.
        placements: in order.
        modules: class names of each module of the model by its path.
    """
    groups: dict[tuple[Placement, int | None, str], list[int]] = {}
    taken: set[str] = set()
    for placement in placements:
        for path in placement.paths:
            found = next((n for n, rule in enumerate(rules.rules) if rule.match.hits(path, modules[path])), None)
            follows = path.rpartition(".")[0] in placement.paths
            if path in taken or (follows and (found is None or "device" not in rules.rules[found].replace.placement)):
                continue
            taken.add(path)
            number = _NUMBER.search(path)
            template = re.escape(path) if number is None else _escaped(path, number)
            groups.setdefault((placement, found, template), []).extend([int(number[0])] if number else [])
    placed = [
        _placed(placement, None if found is None else rules.rules[found], template, layers)
        for (placement, found, template), layers in groups.items()
    ]
    return dataclasses.replace(rules, rules=(*placed, *rules.rules), notes=(*rules.notes, *_notes(placements, placed)))


def _escaped(path: str, number: re.Match[str]) -> str:
    """The regex of a path whose layer number is any."""
    return rf"{re.escape(path[: number.start()])}\d+{re.escape(path[number.end() :])}"


def _placed(placement: Placement, rule: Rule | None, template: str, layers: Sequence[int]) -> Rule:
    match = Match(re.compile(template), None, LayerSet.of(layers) if layers else None)
    where = {"device": placement.device}
    if rule is None:
        return Rule(match, Replace(KEEP, {}, where, placement.location), location=placement.location)
    replace = dataclasses.replace(rule.replace, placement=where, location=placement.location, kwarg_lines={})
    return dataclasses.replace(rule, match=match, replace=replace, location=placement.location)


def _notes(placements: Sequence[Placement], placed: Sequence[Rule]) -> list[Note]:
    by_option: dict[Location, list[Rule]] = {placement.location: [] for placement in placements}
    for rule in placed:
        by_option[rule.location].append(rule)
    return [Note(_became(made), (option,)) for option, made in by_option.items()]


def _became(made: Sequence[Rule]) -> str:
    if not made:
        return "became no rules: there is nothing to place"
    return "\n".join(["became rules:", *(line for rule in made for line in rule_lines(rule))])
