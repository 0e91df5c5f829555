"""YAML text to nodes with line numbers, safely.

Only PyYAML's event parser is used: no tag is ever constructed, so nothing in a file can run code. Depth and the number
of nodes (aliases counted as often as they are used) are capped, so a small file cannot unfold into a large structure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from ktitan.registry import nearest
from ktitan.rules.faultlog import FaultLog
from ktitan.rules.nodes import (
    MAX_DEPTH,
    MAX_NODES,
    BrokenNode,
    Entry,
    ListNode,
    Location,
    MapNode,
    Node,
    ScalarNode,
    resolve_plain,
    shorten,
)

__all__ = ["read_yaml"]

# Part of PyYAML's complaint -> what the author of a rule file most likely has to do.
_HINTS = (
    (
        "unknown escape character",
        "write a regex without quotes or in single quotes, where backslashes stay as they are",
    ),
    ("character '\\t'", "indent with spaces, not tabs"),
    ("while scanning an alias", "put quotes around a value that starts with *; in a regex, any text is .*"),
    ("while scanning an anchor", "put quotes around a value that starts with &"),
    ("but got '{'", "inside { } put quotes around values that hold braces, such as '${gpu}'"),
)
_GENERAL_HINT = "look at the indentation, colons, brackets and quotes of this line and the one before"


class _Stop(Exception):
    """Reading cannot go on: a limit was passed or PyYAML failed in its own code."""

    def __init__(self, line: int, message: str, remedy: str) -> None:
        super().__init__(message)
        self.line, self.message, self.remedy = line, message, remedy


def read_yaml(text: str, file: str, log: FaultLog) -> Node | None:
    """The one document in `text`, with places in `file`; None when there is none or the syntax is broken.

    Faults noted in `log`: syntax errors, tags, duplicate keys, keys that are not text, undefined or recursive aliases,
    bad merge keys (`<<`), a second document, no document, depth or node limits.
    """
    try:
        return _Builder(text, file, log).document()
    except _Stop as stop:
        log.add(Location(file, stop.line), stop.message, stop.remedy)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        log.add(
            Location(file, line), f"character U+{ord(text[error.position]):04X} is not allowed in YAML", "remove it"
        )
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = ": ".join(str(part) for part in (error.context, error.problem) if part)
        remedy = next((hint for part, hint in _HINTS if part in message), _GENERAL_HINT)
        log.add(Location(file, mark.line + 1 if mark else 1), f"YAML syntax error {message}", remedy)
    return None


class _Builder:
    """Builds nodes from PyYAML's events, which come lazily: a limit stops the reading where it is passed."""

    def __init__(self, text: str, file: str, log: FaultLog) -> None:
        self._events: Iterator[Any] = yaml.parse(text, Loader=yaml.SafeLoader)
        self._file = file
        self._log = log
        self._line = 1
        self._size = 0
        self._deepest = 0
        self._anchors: dict[str, tuple[Node, int, int]] = {}  # node, its values in all, levels below it
        self._open_anchors: set[str] = set()

    def document(self) -> Node | None:
        """The root node of the only document."""
        self._next()  # start of the stream
        if isinstance(self._next(), yaml.StreamEndEvent):
            self._log.add(Location(self._file, 1), "the rule file is empty", "start it with `version: 1` and `rules:`")
            return None
        root = self._node(self._next(), 0)
        self._next()  # end of the document
        if not isinstance(self._next(), yaml.StreamEndEvent):
            self._log.add(
                Location(self._file, self._line), "a second YAML document begins", "keep one document in a rule file"
            )
        return root

    def _next(self) -> Any:
        """The next event (Any: PyYAML's stubs know no attribute of events below their common base)."""
        try:
            event = next(self._events)
        except (ValueError, OverflowError) as error:
            # PyYAML 6 lets both out for escapes past U+10FFFF and for absurd %YAML versions.
            raise _Stop(self._line, f"YAML that cannot be read: {error}", _GENERAL_HINT) from error
        self._line = event.start_mark.line + 1
        return event

    def _grow(self, nodes: int, depth: int) -> None:
        """Count values, the deepest of which lie at `depth`; stop at the limits."""
        self._size += nodes
        self._deepest = max(self._deepest, depth)
        if depth > MAX_DEPTH:
            raise _Stop(self._line, f"values are nested deeper than {MAX_DEPTH} levels", "flatten the structure")
        if self._size > MAX_NODES:
            raise _Stop(
                self._line,
                f"the file unfolds to more than {MAX_NODES} values",
                "use fewer aliases (*name), or one rule with a regex or `layers:` in place of many",
            )

    def _node(self, event: Any, depth: int) -> Node:
        location = Location(self._file, self._line)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(str(event.anchor), location, depth)
        if event.anchor:
            return self._anchored(event, location, depth)
        return self._content(event, location, depth)

    def _anchored(self, event: Any, location: Location, depth: int) -> Node:
        """A value with a name, measured so that its aliases can be counted without walking through it."""
        size, deepest = self._size, self._deepest
        self._deepest = depth
        self._open_anchors.add(event.anchor)
        node = self._content(event, location, depth)
        self._open_anchors.discard(event.anchor)
        self._anchors[event.anchor] = (node, self._size - size, self._deepest - depth)
        self._deepest = max(deepest, self._deepest)
        return node

    def _content(self, event: Any, location: Location, depth: int) -> Node:
        self._grow(1, depth)
        node: Node
        if isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(location, depth)
        elif isinstance(event, yaml.MappingStartEvent):
            node = self._mapping(location, depth)
        else:
            value = resolve_plain(event.value) if event.implicit[0] else event.value
            node = ScalarNode(location, value, event.value)
        return node if event.tag is None else self._refused_tag(event.tag, location)

    def _sequence(self, location: Location, depth: int) -> ListNode:
        items = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            items.append(self._node(event, depth + 1))
        return ListNode(location, tuple(items))

    def _mapping(self, location: Location, depth: int) -> MapNode:
        entries: dict[str, Entry] = {}
        merged: list[Node] = []
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            key = self._node(event, depth + 1)
            value = self._node(self._next(), depth + 1)
            if not isinstance(key, ScalarNode):
                self._log.add(key.location, "a key that is not text", "keys are single words")
            elif key.text == "<<":
                merged.append(value)
            elif key.text in entries:
                first = entries[key.text].key_location.line
                self._log.add(
                    key.location, f"key {key.text!r} is given twice (first in line {first})", "keep one of the two"
                )
            else:
                entries[key.text] = Entry(key.location, value)
        for source in merged:
            self._merge(source, entries)
        return MapNode(location, entries)

    def _merge(self, source: Node, entries: dict[str, Entry]) -> None:
        """`<<: *base` or `<<: [*a, *b]`: keys that the mapping does not give itself; the first source wins."""
        for part in source.items if isinstance(source, ListNode) else (source,):
            if not isinstance(part, MapNode):
                self._log.add(part.location, "`<<` takes a mapping or a list of mappings", "write `<<: *name`")
                continue
            for key, entry in part.entries.items():
                entries.setdefault(key, entry)

    def _alias(self, name: str, location: Location, depth: int) -> Node:
        if name in self._open_anchors:
            self._log.add(location, f"alias *{name} stands inside what it names", "a value cannot hold itself")
            return BrokenNode(location)
        if name not in self._anchors:
            known = f"; {nearest(name, self._anchors)}" if self._anchors else ""
            self._log.add(location, f"alias *{name} is not defined", f"put quotes around it if it is text{known}")
            return BrokenNode(location)
        node, size, levels = self._anchors[name]
        self._grow(size, depth + levels)
        return node

    def _refused_tag(self, tag: str, location: Location) -> Node:
        tag = tag.replace("tag:yaml.org,2002:", "!!")
        self._log.add(
            location, f"YAML tag {shorten(tag)!r} is refused", "remove it: rules hold plain values; quote text"
        )
        return BrokenNode(location)
