"""What a rule file or a Python structure is read into: plain values that know where they stand.

Everything downstream (variables, grammar) works on these nodes, so that a rule written in YAML and one handed over as
Python dicts and lists take the same road and get the same faults.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = [
    "MAX_DEPTH",
    "MAX_NODES",
    "BrokenNode",
    "Entry",
    "ListNode",
    "Location",
    "MapNode",
    "Node",
    "Scalar",
    "ScalarNode",
    "describe",
    "resolve_plain",
    "shorten",
]

MAX_DEPTH = 64
MAX_NODES = 100_000

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Location:
    """A place in a rule file, or in a Python structure (`file` is then like `rules[3].match`, `line` is 0)."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True)
class ScalarNode:
    """A single value and the text that it was written as."""

    location: Location
    value: Scalar
    text: str


@dataclass(frozen=True)
class ListNode:
    """A list."""

    location: Location
    items: tuple[Node, ...]


@dataclass(frozen=True)
class Entry:
    """The value of a mapping's key, and where the key stands."""

    key_location: Location
    value: Node


@dataclass(frozen=True)
class MapNode:
    """A mapping; keys are text and unique."""

    location: Location
    entries: Mapping[str, Entry]


@dataclass(frozen=True)
class BrokenNode:
    """A value whose fault has been reported, so that nothing more is said about it."""

    location: Location


Node = ScalarNode | ListNode | MapNode | BrokenNode

# The core schema of YAML 1.2. YAML 1.1, which PyYAML resolves by default, would read `1:30` as 90, `010` as 8, `no` as
# false and `1e5` as text, all without a word.
_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf"), float("inf")),
    "-.inf": float("-inf"),
    ".nan": float("nan"),
}
_DECIMAL = re.compile(r"[-+]?[0-9]{1,18}")  # longer digit strings stay text: no quantity here needs them
_OTHER_BASE = re.compile(r"0o[0-7]{1,18}|0x[0-9a-fA-F]{1,15}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?")


def resolve_plain(text: str) -> Scalar:
    """The value of an unquoted YAML scalar by the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2, 10.3.2)."""
    if text in _WORDS:
        return _WORDS[text]
    if _DECIMAL.fullmatch(text):
        return int(text)
    if _OTHER_BASE.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text) and not text.lstrip("+-").isdecimal():
        return float(text)
    return text


def describe(node: Node) -> str:
    """What a node is, for the "found ..." of a fault."""
    if isinstance(node, ListNode):
        return "a list"
    if isinstance(node, MapNode):
        return "a mapping"
    if isinstance(node, BrokenNode) or node.value is None:
        return "nothing"
    if isinstance(node.value, bool):
        return str(node.value).lower()
    if isinstance(node.value, str):
        return f"text {shorten(node.value)!r}"
    return f"number {shorten(node.text)}"


def shorten(text: str, limit: int = 80) -> str:
    """`text`, cut for display when it is longer than `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
