"""Typed access to the nodes of a KTransformers file; what has another type is a fault."""

from __future__ import annotations

from collections.abc import Mapping

from ktitan.rules.faultlog import FaultLog
from ktitan.rules.nodes import BrokenNode, Entry, MapNode, Node, ScalarNode, describe

__all__ = ["boolean", "is_none", "mapping", "text"]


def mapping(node: Node, what: str, log: FaultLog, remedy: str) -> Mapping[str, Entry]:
    """The entries of a mapping; none, with a fault, when `node` is none."""
    if isinstance(node, MapNode):
        return node.entries
    if isinstance(node, BrokenNode):
        log.spoil()
    else:
        log.add(node.location, f"{what} must be a mapping, found {describe(node)}", remedy)
    return {}


def text(node: Node, what: str, log: FaultLog, remedy: str) -> str | None:
    """The text of a scalar, or None after a fault."""
    if isinstance(node, BrokenNode):
        log.spoil()
    elif isinstance(node, ScalarNode) and isinstance(node.value, str):
        return node.value
    else:
        log.add(node.location, f"{what} must be text, found {describe(node)}", remedy)
    return None


def boolean(node: Node, what: str, log: FaultLog) -> bool:
    """True or false; true after a fault."""
    if isinstance(node, BrokenNode):
        log.spoil()
    elif isinstance(node, ScalarNode) and isinstance(node.value, bool):
        return node.value
    else:
        log.add(node.location, f"{what} must be true or false, found {describe(node)}", "write True or False")
    return True


def is_none(node: Node | None) -> bool:
    """Whether a value is missing, null, or the text "None", which KTransformers' files have for null."""
    return node is None or (isinstance(node, ScalarNode) and node.value in (None, "None"))
