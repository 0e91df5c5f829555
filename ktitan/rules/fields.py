"""The mappings of the grammar: which keys each may have, and typed access that notes faults."""

from __future__ import annotations

from typing import Any

from ktitan.registry import nearest
from ktitan.rules.faultlog import FaultLog
from ktitan.rules.nodes import BrokenNode, ListNode, Location, MapNode, Node, ScalarNode, describe
from ktitan.rules.ruleset import PLACEMENT_KEYS

__all__ = ["KEYS", "Fields", "plain"]

KEYS: dict[str, tuple[str, ...]] = {
    "the rule file": ("version", "vars", "include", "rules"),
    "the rule": ("match", "replace", "optional", "recursive"),
    "match": ("name", "class", "layers", "not"),
    "not": ("name", "class", "layers"),
    "replace": ("class", "kwargs", "prefill", "source"),
    "prefill": ("class", "kwargs"),
}


class Fields:
    """The entries of one mapping of the grammar; `level` is a key of `KEYS`."""

    def __init__(self, node: MapNode, level: str, log: FaultLog) -> None:
        self.location = node.location
        self.log = log
        self._level = level
        self._entries = node.entries
        for key, entry in node.entries.items():
            if key not in KEYS[level]:
                log.add(entry.key_location, f"unknown key {key!r} in {level}", _remedy(key, level))

    @classmethod
    def of(cls, node: Node, level: str, log: FaultLog) -> Fields | None:
        """The fields of `node`; None, with a fault, when it is no mapping."""
        if isinstance(node, MapNode):
            return cls(node, level, log)
        if isinstance(node, BrokenNode):
            log.spoil()
        else:
            message = f"{level} must be a mapping, found {describe(node)}"
            log.add(node.location, message, f"it has the keys {', '.join(KEYS[level])}")
        return None

    def get(self, key: str) -> Node | None:
        """The value of a key, None when it is not given."""
        entry = self._entries.get(key)
        return entry.value if entry else None

    def require(self, key: str, remedy: str) -> Node | None:
        """The value of a key that must be there."""
        if key not in self._entries:
            self.log.add(self.location, f"{self._level} has no {key!r}", remedy)
        return self.get(key)

    def text(self, key: str, remedy: str) -> str | None:
        """The value of a key as text that is not empty; None when it is not given or faulty."""
        node = self.get(key)
        if node is None:
            return None
        if isinstance(node, BrokenNode):
            self.log.spoil()
        elif isinstance(node, ScalarNode) and isinstance(node.value, str) and node.value:
            return node.value
        else:
            self.log.add(node.location, f"{key} of {self._level} must be text, found {describe(node)}", remedy)
        return None

    def flag(self, key: str, default: bool) -> bool:
        """The value of a key as true or false."""
        node = self.get(key)
        if node is None:
            return default
        if isinstance(node, BrokenNode):
            self.log.spoil()
        elif isinstance(node, ScalarNode) and isinstance(node.value, bool):
            return node.value
        else:
            message = f"{key} of {self._level} must be true or false, found {describe(node)}"
            self.log.add(node.location, message, "write true or false, without quotes")
        return default

    def location_of(self, key: str) -> Location:
        """Where the value of a key stands; the mapping's place when it is not given."""
        node = self.get(key)
        return node.location if node else self.location


def _remedy(key: str, level: str) -> str:
    """Where a key belongs when the grammar has it elsewhere, otherwise the nearest key of this level."""
    if level in ("replace", "prefill", "the rule") and key in PLACEMENT_KEYS:
        return f"{key!r} belongs under `kwargs:`"
    elsewhere = [other for other, keys in KEYS.items() if key in keys and other not in ("not", "prefill")]
    return f"{key!r} belongs in {' or '.join(elsewhere)}" if elsewhere else nearest(key, KEYS[level])


def plain(node: Node, log: FaultLog) -> Any:
    """`node` as fresh dicts, lists and scalars; a broken part is None and spoils what it belongs to."""
    if isinstance(node, ScalarNode):
        return node.value
    if isinstance(node, ListNode):
        return [plain(item, log) for item in node.items]
    if isinstance(node, MapNode):
        return {key: plain(entry.value, log) for key, entry in node.entries.items()}
    log.spoil()
    return None
