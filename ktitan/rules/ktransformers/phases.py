"""`generate_*` and `prefill_*`: what decodes, what reads prompts, and where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ktitan.registry import nearest
from ktitan.rules.faultlog import FaultLog
from ktitan.rules.ktransformers.devices import device_of
from ktitan.rules.ktransformers.entry import Entry
from ktitan.rules.ktransformers.reading import is_none, text
from ktitan.rules.ktransformers.remarks import Remarks
from ktitan.rules.ruleset import Replace

__all__ = ["Phase", "phase_of"]


@dataclass(frozen=True)
class Phase:
    """One phase of a rule.

    Attributes:
        op: the backend's name; "" where the class has none.
        operators: what it is here.
        device: where it computes; None where the file does not say, or names a foreign device.
        note: what differs.
        line: of the device.
        kwargs: of the operator.
    """

    op: str
    operators: tuple[str, ...]
    device: str | None
    note: str
    line: int
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def replace(self, entry: Entry) -> Replace:
        """This phase as the `replace:` or `prefill:` of a version 1 rule."""
        placement = {} if self.device is None else {"device": self.device}
        first, *others = self.operators
        lines = {"device": self.line} if placement else {}
        return Replace(first, self.kwargs, placement, entry.places["replace"], lines, tuple(others))


def phase_of(entry: Entry, which: str, log: FaultLog, remarks: Remarks) -> Phase | None:
    """The phase `which`, "generate" or "prefill"; None where the file turns its operator off or it is faulty."""
    target = entry.target
    default_op, default_device = getattr(target, which)
    key = f"{which}_device"
    device = device_of(entry.kwarg(key), log, remarks) if key in entry.kwargs else default_device or None
    line = entry.place(key).line
    if not target.backends:
        return Phase("", target.operators, device, "", line)
    op = default_op
    node = entry.kwarg(f"{which}_op")
    if node is not None:
        if is_none(node):
            return None
        op = text(node, f"{which}_op", log, nearest("", target.backends)) or ""
        if op and op not in target.backends:
            log.add(node.location, f"unknown {which}_op {op!r}", nearest(op, target.backends))
    backend = target.backends.get(op)
    return None if backend is None else Phase(op, backend.operators, device, backend.note, line)
