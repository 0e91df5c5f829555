"""A translated file as a version 1 file: what it says, with every remark at the rule that it is about."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from ktitan.rules.match import Match
from ktitan.rules.nodes import Location
from ktitan.rules.ruleset import Replace, Rule, RuleSet

__all__ = ["rule_lines", "to_yaml"]

WIDTH = 116


def to_yaml(rules: RuleSet) -> str:
    """Version 1 YAML that reads as `rules` again; remarks and origin are comments."""
    starts = sorted({(rule.location.file, rule.location.line) for rule in rules.rules})
    remarks: dict[tuple[str, int], list[str]] = {}
    for note in rules.notes:
        # A remark on the whole file stands at the top; one within a rule, before that rule.
        for place in dict.fromkeys(_rule_of(place, starts) for place in note.places):
            remarks.setdefault(place, []).append(note.message)
    top = [message for place, messages in remarks.items() if not place[1] for message in messages]
    lines = [f"# Translated from {rules.origin}", *(line for message in top for line in _comment(message, ""))]
    lines += ["version: 1", "rules:" if rules.rules else "rules: []"]
    last: tuple[str, int] | None = None
    for rule in rules.rules:
        place = (rule.location.file, rule.location.line)
        if place != last and place[1]:
            lines.append(f"  # line {place[1]}")
            lines += [line for message in remarks.get(place, ()) for line in _comment(message, "  ")]
        lines += rule_lines(rule)
        last = place
    return "\n".join(lines) + "\n"


def _rule_of(place: Location, starts: list[tuple[str, int]]) -> tuple[str, int]:
    """The start of the rule that `place` lies in; line 0 for the file as a whole."""
    before = [start for start in starts if start[0] == place.file and start[1] <= place.line]
    return max(before, default=(place.file, 0)) if place.line else (place.file, 0)


def _comment(message: str, indent: str) -> Iterator[str]:
    """A remark as lines of comments."""
    return iter(textwrap.wrap(message, WIDTH, initial_indent=f"{indent}# - ", subsequent_indent=f"{indent}#   "))


def rule_lines(rule: Rule) -> Iterator[str]:
    """The lines of one rule in a list of `rules:`; keys that say what holds anyway are left out."""
    yield f"  - match: {_flow(_match(rule.match))}"
    replace = _replace(rule.replace)
    if rule.prefill is not None:
        replace["prefill"] = _replace(rule.prefill)
    if rule.source is not None:
        replace["source"] = rule.source
    yield f"    replace: {_flow(replace)}"
    if rule.optional:
        yield "    optional: true"
    if not rule.recursive:
        yield "    recursive: false"


def _match(match: Match) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    if match.name is not None:
        entries["name"] = _Quoted(match.name.pattern)
    if match.cls is not None:
        entries["class"] = match.cls
    if match.layers is not None:
        entries["layers"] = str(match.layers)
    if match.exclude:
        entries["not"] = [_match(exception) for exception in match.exclude]
    return entries


def _replace(replace: Replace) -> dict[str, Any]:
    names = list(replace.operators)
    entries: dict[str, Any] = {"class": names if len(names) > 1 else names[0]}
    kwargs = {**replace.placement, **replace.kwargs}
    return {**entries, "kwargs": kwargs} if kwargs else entries


class _Quoted(str):
    """Text in single quotes, which is how a regex is best read."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    """Writes text so that the 1.2 rules of `nodes.resolve_plain` read it as text again."""

    def ignore_aliases(self, data: Any) -> bool:
        """Every value is written out."""
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    written = text.replace("${", "$${")
    plain = not isinstance(text, _Quoted) and text.replace(".", "").replace("_", "").isidentifier()
    return dumper.represent_scalar("tag:yaml.org,2002:str", written, style=None if plain else "'")


_Dumper.add_representer(str, _text)
_Dumper.add_representer(_Quoted, _text)


def _flow(value: Mapping[str, Any]) -> str:
    """A mapping on one line."""
    dumped: str = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=10**6, allow_unicode=True,
                            sort_keys=False)  # fmt: skip
    return dumped.strip()
