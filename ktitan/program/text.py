"""A program as text: one line an operation."""

from __future__ import annotations

from typing import Any

from ktitan.native.program import Buffer, Operation
from ktitan.program.draft import Call
from ktitan.program.memory import Placed

__all__ = ["program_text"]


def program_text(placed: Placed, values: list[Buffer], logits: int) -> str:
    """Number, path, kind, values out and in as name[width], format or settings; calls say why they are calls."""
    lines = []
    rows = [(item.path, _kind(item), _values(item, values, logits), _remark(item)) for item in placed.items]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    for number, row in enumerate(rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append(f"{number:4}  {'  '.join(cells)}  {row[3]}".rstrip())
    return "\n".join(lines)


def _kind(item: Operation | Call) -> str:
    return "call" if isinstance(item, Call) else item.kind


def _values(item: Operation | Call, values: list[Buffer], logits: int) -> str:
    def name(value: int) -> str:
        prefix = "logits" if value == logits else f"v{value}"
        return f"{prefix}[{values[value].width}]"

    given, made = (" ".join(map(name, some)) for some in (item.inputs, item.outputs))
    return f"{made or '-'} <- {given or 'ids'}"


def _remark(item: Operation | Call) -> str:
    if isinstance(item, Call):
        return f"{type(item.module).__name__} in Python: {item.reason}"
    what: Any = item.what
    words = [_format(what)]
    if item.kind in ("linear", "stream_linear", "experts", "stream_experts"):
        words.append(f"x {item.activations}" if "f32" not in words[0] else "")
    if item.kind in ("append", "attend"):
        words.append(f"layer {item.numbers[0]}")
    if item.factor != 1.0:
        words.append(f"times {item.factor:g}")
    if item.bias is not None:
        words.append("+ bias")
    return " ".join(word for word in words if word)


def _format(what: Any) -> str:
    """The format of weights, of a matrix or of experts."""
    for owner in (what, getattr(what, "shape", None)):
        name = getattr(owner, "format", None)
        if isinstance(name, str):
            return name
        up, down = (getattr(getattr(owner, part, None), "format", None) for part in ("up", "down"))
        if up is not None:
            return up if up == down else f"{up}, {down}"
    return ""
