"""One entry of `rules:` to a `Rule`, with every fault noted."""

from __future__ import annotations

from typing import Any

from ktitan.rules.faultlog import FaultLog
from ktitan.rules.fields import Fields, plain
from ktitan.rules.layers import parse_layers
from ktitan.rules.match import Match
from ktitan.rules.nodes import BrokenNode, ListNode, MapNode, Node, ScalarNode, describe, shorten
from ktitan.rules.placement import parse_placement
from ktitan.rules.regex import compile_regex
from ktitan.rules.ruleset import KEEP, PLACEMENT_KEYS, Replace, Rule

__all__ = ["parse_rule"]

_OPERATOR = "name a registered operator such as linear.torch, or `class: keep`"


def parse_rule(node: Node, log: FaultLog) -> Rule | None:
    """The rule that `node` describes; None when anything in it is faulty."""
    before = log.count
    fields = Fields.of(node, "the rule", log)
    if fields is None:
        return None
    match_node = fields.require("match", "say which modules are meant: `match:` with name, class or layers")
    replace_node = fields.require("replace", "say what they become: `replace:` with class")
    match = _match(match_node, log) if match_node else None
    replace, prefill, source = _replace(replace_node, log) if replace_node else (None, None, None)
    optional, recursive = fields.flag("optional", False), fields.flag("recursive", True)
    if log.count > before or match is None or replace is None:
        return None
    return Rule(match, replace, prefill, source, optional, recursive, node.location)


def _match(node: Node, log: FaultLog) -> Match | None:
    """`match:`: its conditions and, under `not:`, its exceptions."""
    fields = Fields.of(node, "match", log)
    if fields is None:
        return None
    match = _conditions(fields)
    if not any(fields.get(key) for key in ("name", "class", "layers")):
        message = "match has no condition"
        log.add(fields.location, message, "give name, class or layers; `name: .*` starts from every module")
    exceptions = fields.get("not")
    if exceptions is None:
        return match
    return Match(match.name, match.cls, match.layers, _exceptions(exceptions, log))


def _exceptions(node: Node, log: FaultLog) -> tuple[Match, ...]:
    """`not:`: one mapping of conditions or a list of them; any of them takes a module out."""
    found = []
    for part in node.items if isinstance(node, ListNode) else (node,):
        fields = Fields.of(part, "not", log)
        if fields is None:
            continue
        exception = _conditions(fields)
        if not any(fields.get(key) for key in ("name", "class", "layers")):
            log.add(fields.location, "not has no condition", "give name, class or layers, or remove it")
        found.append(exception)
    if isinstance(node, ListNode) and not node.items:
        log.add(node.location, "not is an empty list", "give name, class or layers, or remove it")
    return tuple(found)


def _conditions(fields: Fields) -> Match:
    """The conditions that `match` and `not` share."""
    pattern = fields.text("name", "write a regex; several are joined with |")
    cls = fields.text("class", "write a class name such as Linear, or module.Linear in full")
    if cls is not None and not all(part.isidentifier() for part in cls.split(".")):
        remedy = "write one name such as Linear, or module.Linear in full; patterns belong in `name:`"
        fields.log.add(fields.location_of("class"), f"{shorten(cls)!r} is no class name", remedy)
    layers = fields.get("layers")
    return Match(
        name=None if pattern is None else compile_regex(pattern, fields.location_of("name"), fields.log),
        cls=cls,
        layers=None if layers is None else parse_layers(layers, fields.log),
    )


def _replace(node: Node, log: FaultLog) -> tuple[Replace | None, Replace | None, str | None]:
    """`replace:`: what a module becomes, what runs in prefill, and its weight source."""
    fields = Fields.of(node, "replace", log)
    if fields is None:
        return None, None, None
    fields.require("class", _OPERATOR)
    replace = _operation(fields, ("",), log)
    prefill = fields.get("prefill")
    return (
        replace,
        None if prefill is None else _prefill(prefill, replace.operators, log),
        fields.text("source", "name one of the weight sources, such as experts.gguf"),
    )


def _prefill(node: Node, operators: tuple[str, ...], log: FaultLog) -> Replace | None:
    """`prefill:`: another operator, other kwargs or both."""
    fields = Fields.of(node, "prefill", log)
    if fields is None:
        return None
    if fields.get("class") is None and fields.get("kwargs") is None:
        log.add(fields.location, "prefill changes nothing", "give class or kwargs, or remove it")
    return _operation(fields, operators, log)


def _operation(fields: Fields, default: tuple[str, ...], log: FaultLog) -> Replace:
    """The operators and kwargs of `replace` or `prefill`; `default` are the operators when none is named."""
    operator, *others = _operators(fields, log) or default
    kwargs: dict[str, Any] = {}
    placement: dict[str, str] = {}
    lines: dict[str, int] = {}
    for key, entry in _kwarg_nodes(fields, log).entries.items():
        lines[key] = entry.key_location.line
        if key in PLACEMENT_KEYS:
            value = parse_placement(key, entry.value, log)
            placement.update({} if value is None else {key: value})
        elif operator == KEEP:
            message = f"keep takes no {key!r}"
            log.add(entry.key_location, message, f"it only places a module: {', '.join(PLACEMENT_KEYS)}")
        else:
            kwargs[key] = plain(entry.value, log)
    location = fields.location_of("class")
    # The place in a Python structure names a value, not a line: it has to be one that holds the kwargs, too.
    return Replace(operator, kwargs, placement, location if location.line else fields.location, lines, tuple(others))


def _operators(fields: Fields, log: FaultLog) -> tuple[str, ...]:
    """`class:` of `replace` or `prefill`: one operator, or a list whose first that supports a module is taken; with
    `keep` at its end the module stays stock where none does.
    """
    node = fields.get("class")
    if not isinstance(node, ListNode):
        name = fields.text("class", _OPERATOR)
        return (name,) if name else ()
    names = tuple(item.value for item in node.items if isinstance(item, ScalarNode) and isinstance(item.value, str))
    if any(isinstance(item, BrokenNode) for item in node.items):
        log.spoil()
    elif len(names) < len(node.items) or not all(names):
        log.add(node.location, "class has an entry that is not text", _OPERATOR)
    elif not names:
        log.add(node.location, "class is an empty list", _OPERATOR)
    elif KEEP in names[:-1]:
        log.add(node.location, "keep fits every module, so it can only be the last of several", "move it to the end")
    elif len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        log.add(node.location, f"class names {shorten(twice)} twice", "name each operator once")
    else:
        return names
    return ()


def _kwarg_nodes(fields: Fields, log: FaultLog) -> MapNode:
    """`kwargs:` as a mapping; empty when it is not given or faulty."""
    node = fields.get("kwargs")
    if isinstance(node, MapNode):
        return node
    if isinstance(node, BrokenNode):
        log.spoil()
    elif node is not None:
        message = f"kwargs must be a mapping, found {describe(node)}"
        log.add(node.location, message, "write `kwargs: {name: value}`, or remove it")
    return MapNode(fields.location, {})
