"""`layers:` of a match: `7`, `3-60`, `12-`, `0,2,5-7`, or a list of these."""

from __future__ import annotations

import re

from ktitan.rules.faultlog import FaultLog
from ktitan.rules.match import LayerSet
from ktitan.rules.nodes import BrokenNode, ListNode, Location, Node, ScalarNode, describe, shorten

__all__ = ["parse_layers"]

_RANGE = re.compile(r"(?P<first>[0-9]{1,9})\s*(?P<dash>-\s*(?P<last>[0-9]{1,9})?)?")
_REMEDY = "write 7, 3-60, 12- (to the end), or several as 0,2,5-7"


def parse_layers(node: Node, log: FaultLog) -> LayerSet | None:
    """The layers that `node` names; None, with a fault for each bad part, when it names none."""
    ranges: list[tuple[int, int | None]] = []
    for part in node.items if isinstance(node, ListNode) else (node,):
        if isinstance(part, BrokenNode):
            log.spoil()
        elif isinstance(part, ScalarNode) and isinstance(part.value, (int, str)) and not isinstance(part.value, bool):
            ranges += _ranges(str(part.value), part.location, log)
        else:
            log.add(part.location, f"layers must be numbers and ranges, found {describe(part)}", _REMEDY)
    if isinstance(node, ListNode) and not node.items:
        log.add(node.location, "layers is an empty list", _REMEDY)
    return LayerSet(tuple(ranges)) if ranges else None


def _ranges(text: str, location: Location, log: FaultLog) -> list[tuple[int, int | None]]:
    """The ranges of a comma-separated text; bad ones are faults and left out."""
    ranges: list[tuple[int, int | None]] = []
    for part in text.split(","):
        found = _RANGE.fullmatch(part.strip())
        if found is None:
            log.add(location, f"{shorten(part.strip())!r} is no layer or range of layers", _REMEDY)
            continue
        first = int(found["first"])
        last = int(found["last"]) if found["last"] else None if found["dash"] else first
        if last is not None and last < first:
            log.add(location, f"layers {first}-{last} run backwards", f"write {last}-{first}")
            continue
        ranges.append((first, last))
    return ranges
