"""Devices: where a rule places a module, and the layers at which a model goes on to the next device."""

from __future__ import annotations

import re
from itertools import pairwise

from ktitan.rules.faultlog import FaultLog
from ktitan.rules.ktransformers.reading import is_none, mapping
from ktitan.rules.ktransformers.remarks import Remarks
from ktitan.rules.match import LayerSet
from ktitan.rules.nodes import BrokenNode, Node, ScalarNode, describe

__all__ = ["DEFAULT_DEVICE", "device_of", "layer_devices", "whole_device"]

DEFAULT_DEVICE = "cuda:0"  # of modules without a rule, whatever index `--device cuda:N` has (optimize.py)
_KNOWN = re.compile(r"(?P<cpu>cpu)(?::0)?|cuda(?::(0|[1-9][0-9]?))?")
_FOREIGN = re.compile(r"(xpu|npu)(:[0-9]+)?")


def device_of(node: Node | None, log: FaultLog, remarks: Remarks) -> str | None:
    """The device that a value names; None when it names none, or one that ktitan does not know, with a remark."""
    if node is None or is_none(node):
        return None
    if isinstance(node, BrokenNode):
        log.spoil()
        return None
    value = node.value if isinstance(node, ScalarNode) else None
    known = _KNOWN.fullmatch(value) if isinstance(value, str) else None
    if known:
        return known["cpu"] or known.group()
    if isinstance(value, str) and _FOREIGN.fullmatch(value):
        remarks.add(
            f"ktitan knows no device {value!r}: the module computes where the one around it does", node.location
        )
        return None
    log.add(node.location, f"a device must be cpu, cuda or cuda:N, found {describe(node)}", 'write "cuda:0" or "cpu"')
    return None


def whole_device(device: str | None) -> str | None:
    """A device's one name: "cuda" is "cuda:0"."""
    return DEFAULT_DEVICE if device == "cuda" else device


def layer_devices(node: Node, log: FaultLog, remarks: Remarks) -> list[tuple[LayerSet, str]]:
    """`transfer_map`, {first layer: device}, as devices of ranges of layers, ascending."""
    remedy = 'write `transfer_map: {30: "cuda:1"}`: from layer 30 on, the model computes on cuda:1'
    cuts: dict[int, str] = {}
    for key, entry in mapping(node, "transfer_map", log, remedy).items():
        device = device_of(entry.value, log, remarks)
        if not re.fullmatch(r"[0-9]{1,4}", key):
            log.add(entry.key_location, f"{key!r} is no number of a layer", remedy)
        elif device is not None:
            cuts[int(key)] = device
    starts = [*sorted(cuts), None]
    return [
        (LayerSet(((start, None if following is None else following - 1),)), cuts[start])
        for start, following in pairwise(starts)
        if start is not None
    ]
