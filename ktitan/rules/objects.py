"""Python dicts and lists to nodes, for rules that a program writes instead of a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ktitan.rules.faultlog import FaultLog
from ktitan.rules.nodes import MAX_DEPTH, MAX_NODES, BrokenNode, Entry, ListNode, Location, MapNode, Node, ScalarNode

__all__ = ["read_object"]


def read_object(value: Any, origin: str, log: FaultLog) -> Node:
    """Nodes whose places read like `rules[3].match.name`, after `origin` when that is not empty.

    A list is read as the list of rules. Objects other than mappings, lists, tuples, text, numbers, booleans and None
    are faults, as are keys that are not text and structures that hold themselves.
    """
    place = "rules" if isinstance(value, (list, tuple)) else ""
    try:
        return _Reader(origin, log).node(value, place, 0)
    except _TooLarge:
        location = Location(origin or "rules")
        log.add(location, f"deeper than {MAX_DEPTH} levels or more than {MAX_NODES} values", "does it hold itself?")
        return BrokenNode(location)


class _TooLarge(Exception):
    """A limit was passed."""


class _Reader:
    def __init__(self, origin: str, log: FaultLog) -> None:
        self._origin = origin
        self._log = log
        self._size = 0

    def node(self, value: Any, place: str, depth: int) -> Node:
        """The node of `value`, which stands at `place`."""
        location = Location(" ".join(part for part in (self._origin, place) if part) or "rules")
        self._size += 1
        if depth > MAX_DEPTH or self._size > MAX_NODES:
            raise _TooLarge
        if value is None or isinstance(value, (str, bool, int, float)):
            return ScalarNode(location, value, str(value))
        if isinstance(value, (list, tuple)):
            items = (self.node(item, f"{place}[{number}]", depth + 1) for number, item in enumerate(value))
            return ListNode(location, tuple(items))
        if isinstance(value, Mapping):
            return self._mapping(value, location, place, depth)
        self._log.add(location, f"an object of type {type(value).__name__}", "rules hold plain values, lists and dicts")
        return BrokenNode(location)

    def _mapping(self, value: Mapping[Any, Any], location: Location, place: str, depth: int) -> MapNode:
        entries: dict[str, Entry] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                self._log.add(location, f"key {key!r} is not text", "keys are strings")
                continue
            child = self.node(item, f"{place}.{key}" if place else key, depth + 1)
            entries[key] = Entry(child.location, child)
        return MapNode(location, entries)
