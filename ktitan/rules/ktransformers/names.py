"""Names: KTransformers' `re.search` patterns as full matches of the same paths, readable where that can be.

A path is a module's dotted path: it holds no newline, and its numbers have no leading zeros.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ktitan.rules.match import LayerSet

__all__ = ["Name", "whole_path"]

_FLAGS = re.compile(r"\(\?[aiLmsux]+\)")
# What a plain look at brackets and bars would misread, or what counts the groups that simplifying takes away.
_OPAQUE = re.compile(r"\(\?(#|[aiLmsux-]+:|P=|\()|\\[1-9]")
# "^model\.layers\.": components that are names; then digits as one component; then the rest of the pattern.
_LAYERED = re.compile(
    r"\^(?P<head>(?:[A-Za-z_]\w*\\\.)+)"
    r"(?:\((?:\?:)?(?P<group>[0-9\[\]|-]+)\)|(?P<bare>[0-9\[\]-]+))"
    r"(?P<rest>\\\..*|\$)",
    re.DOTALL,
)
_CLASS = re.compile(r"\[[0-9-]+\]")
_WIDEST = 4  # digits of a layer number


@dataclass(frozen=True)
class Name:
    """`name:` and `layers:` of a version 1 match."""

    pattern: str
    layers: LayerSet | None = None


def whole_path(pattern: str) -> Name:
    """The conditions whose full match hits the paths in which `re.search` finds `pattern` (which must compile)."""
    flags = _FLAGS.match(pattern)
    if flags or _OPAQUE.search(pattern):
        front, body = (flags.group(), pattern[flags.end() :]) if flags else ("", pattern)
        end = "\n" if "x" in front else ""  # a comment of a verbose pattern would take the bracket in
        return Name(f"{front}.*(?:{body}{end}).*")
    alternatives = _alternatives(pattern)
    if len(alternatives) == 1:
        layered = _layered(alternatives[0])
        if layered is not None:
            return layered
    return Name("|".join(map(_whole, alternatives)))


def _whole(alternative: str) -> str:
    """One alternative: anchors fall away, and where there is none, any text may stand before or after."""
    start = re.match(r"\^|\\A", alternative)
    end = re.search(r"(?<!\\)(?:\\\\)*(?P<anchor>\$|\\Z)\Z", alternative)
    core = alternative[start.end() if start else 0 : end.start("anchor") if end else None]
    if start and end and not core:
        return "(?:)"  # the model itself, which no rule matches
    before = "" if start or re.match(r"\.\*(?!\+)", core) else ".*"
    after = "" if end or re.search(r"(?<!\\)(?:\\\\)*\.[*+]\Z", core) else ".*"
    # A lone ".*" is both: "^", "" and ".*" find every path.
    return f"{before}{core}{after}" if core else ".*"


def _layered(alternative: str) -> Name | None:
    """`^model\\.layers\\.(0|[1-9])\\.` and the like as any number with `layers: 0-9`; None for other patterns."""
    found = _LAYERED.fullmatch(alternative)
    numbers = found and _numbers(found["group"] or found["bare"])
    if not found or not numbers:
        return None
    return Name(_whole(f"^{found['head']}[0-9]+{found['rest']}"), LayerSet.of(numbers))


def _numbers(digits: str) -> list[int] | None:
    """The numbers that a pattern of digits, classes and bars matches; None when it may match others than these."""
    branches = _CLASS.sub("0", digits).split("|")
    if any(not branch.isdecimal() or len(branch) > _WIDEST for branch in branches):
        return None
    compiled = re.compile(digits)
    return [number for number in range(10**_WIDEST) if compiled.fullmatch(str(number))]


def _alternatives(pattern: str) -> list[str]:
    """The alternatives of the whole pattern; those of a group that is all of one alternative are alternatives, too."""
    parts, start, depth = [], 0, 0
    for place, sign in _signs(pattern):
        depth += {"(": 1, ")": -1}.get(sign, 0)
        if sign == "|" and depth == 0:
            parts.append(pattern[start:place])
            start = place + 1
    parts.append(pattern[start:])
    found: list[str] = []
    for part in parts:
        inner = _unwrapped(part)
        found += [part] if inner is None else _alternatives(inner)
    return found


def _unwrapped(part: str) -> str | None:
    """What is inside a plain group that is all of `part`."""
    opening = re.match(r"\((\?:|(?!\?))", part)
    if not opening:
        return None
    depth = 0
    for place, sign in _signs(part):
        depth += {"(": 1, ")": -1}.get(sign, 0)
        if depth == 0:
            return part[opening.end() : place] if place == len(part) - 1 else None
    return None


def _signs(pattern: str) -> Iterator[tuple[int, str]]:
    """Round brackets and bars that are neither escaped nor in a class of characters, with their places."""
    place = 0
    while place < len(pattern):
        sign = pattern[place]
        if sign == "[":
            place = _class_end(pattern, place)
        elif sign in "(|)":
            yield place, sign
        place += 2 if sign == "\\" else 1


def _class_end(pattern: str, place: int) -> int:
    """Where the class of characters that opens at `place` closes; a `]` right at its front belongs to it."""
    place += 2 if pattern.startswith("[^", place) else 1
    place += pattern.startswith("]", place)
    while pattern[place] != "]":
        place += 2 if pattern[place] == "\\" else 1
    return place
