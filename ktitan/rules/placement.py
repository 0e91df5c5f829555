"""The placement keys among the kwargs of a rule: where a module computes and where its bytes live."""

from __future__ import annotations

import re

from ktitan.registry import nearest
from ktitan.rules.faultlog import FaultLog
from ktitan.rules.nodes import BrokenNode, Node, ScalarNode, describe
from ktitan.rules.ruleset import TIERS

__all__ = ["parse_placement"]

_DEVICE = re.compile(r"cpu|cuda|cuda:(0|[1-9][0-9]?)")
_DEVICES = "use cpu, cuda or cuda:N"


def parse_placement(key: str, node: Node, log: FaultLog) -> str | None:
    """The checked value of `device`, `home` or `tier`; None, with a fault, when it is not one of the known values."""
    if isinstance(node, BrokenNode):
        log.spoil()
        return None
    value = node.value if isinstance(node, ScalarNode) else None
    if key == "device":
        if isinstance(value, str) and _DEVICE.fullmatch(value):
            return value
        log.add(node.location, f"device must be cpu, cuda or cuda:N, found {describe(node)}", _device_remedy(value))
        return None
    if isinstance(value, str) and value in TIERS:
        return value
    log.add(node.location, f"unknown {key}: {describe(node)}", nearest(value if isinstance(value, str) else "", TIERS))
    return None


def _device_remedy(value: object) -> str:
    if value == "meta":
        return f"weights are loaded, so a real device is needed: {_DEVICES}"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return f"write cuda:{value}"
    if isinstance(value, str) and _DEVICE.fullmatch(value.lower()):
        return f"write {value.lower()}"
    return _DEVICES
