"""`vars:` and `${name}`.

All files of a rule set share one namespace. The first definition of a name wins, in this order: the caller's variables,
the file's own `vars:`, then those of its includes in their order; so what a part defines is a default.

- `${gpu}` inside text is replaced by the variable's text; a value that is nothing but `${threads}` takes the variable's
  value, so a number stays a number.
- A variable may use those that were defined before it.
- `$` anywhere else, such as at the end of a regex, is itself; `$${` makes a literal `${`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ktitan.registry import nearest
from ktitan.rules.faultlog import FaultLog
from ktitan.rules.nodes import (
    BrokenNode,
    Entry,
    ListNode,
    Location,
    MapNode,
    Node,
    ScalarNode,
    describe,
    resolve_plain,
    shorten,
)

__all__ = ["MAX_TEXT", "Scope"]

MAX_TEXT = 10_000  # characters of one value after interpolation: nested variables could double it each time
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_REFERENCE = re.compile(r"(?P<escape>\$\$\{)|\$\{(?P<name>[^{}]*)(?P<end>\})?")


class Scope:
    """The variables of a rule set; `given` are the caller's, text is resolved as it would be in a file."""

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        self._variables: dict[str, ScalarNode | BrokenNode] = {}
        for name, text in (given or {}).items():
            self._variables[name] = ScalarNode(Location("variables"), resolve_plain(str(text)), str(text))

    def define(self, variables: Node, log: FaultLog) -> None:
        """Take the `vars:` mapping of a file; names that are already defined keep their value."""
        if isinstance(variables, BrokenNode):
            return
        if not isinstance(variables, MapNode):
            log.add(variables.location, f"vars must be a mapping, found {describe(variables)}", "write `name: value`")
            return
        for name, entry in variables.entries.items():
            if not _NAME.fullmatch(name):
                log.add(entry.key_location, f"{name!r} is no variable name", "use letters, digits, _ and -")
            elif name not in self._variables:
                self._variables[name] = self._value(name, entry.value, log)

    def _value(self, name: str, node: Node, log: FaultLog) -> ScalarNode | BrokenNode:
        value = self.expand(node, log)
        if isinstance(value, BrokenNode):
            return value
        if isinstance(value, ScalarNode) and value.value is not None and not isinstance(value.value, bool):
            return value
        message = f"variable {name!r} must be text or a number, found {describe(value)}"
        log.add(value.location, message, "give one plain value")
        return BrokenNode(value.location)

    def expand(self, node: Node, log: FaultLog) -> Node:
        """`node` with every `${name}` replaced; a value with a faulty reference becomes a `BrokenNode`."""
        if isinstance(node, ListNode):
            return ListNode(node.location, tuple(self.expand(item, log) for item in node.items))
        if isinstance(node, MapNode):
            entries = {key: Entry(e.key_location, self.expand(e.value, log)) for key, e in node.entries.items()}
            return MapNode(node.location, entries)
        if isinstance(node, ScalarNode) and isinstance(node.value, str) and "${" in node.value:
            return self._expand_text(node, node.value, log)
        return node

    def _expand_text(self, node: ScalarNode, text: str, log: FaultLog) -> Node:
        before = log.count
        alone = _REFERENCE.fullmatch(text)
        if alone and not alone["escape"]:
            variable = self._look_up(alone, node.location, log)
            return ScalarNode(node.location, variable.value, variable.text) if variable else BrokenNode(node.location)

        def written(reference: re.Match[str]) -> str:
            if reference["escape"]:
                return "${"
            variable = self._look_up(reference, node.location, log)
            return variable.text if variable else ""

        # The first check bounds the number of references, so that the text in between stays small, too.
        expanded = text if len(text) > MAX_TEXT else _REFERENCE.sub(written, text)
        if len(expanded) > MAX_TEXT:
            message = f"a value with variables grows to more than {MAX_TEXT} characters"
            log.add(node.location, message, "shorten it: variables that repeat others grow at each step")
        return ScalarNode(node.location, expanded, expanded) if log.count == before else BrokenNode(node.location)

    def _look_up(self, reference: re.Match[str], location: Location, log: FaultLog) -> ScalarNode | None:
        name = reference["name"]
        if not reference["end"] or not _NAME.fullmatch(name):
            message = f"{shorten(reference.group())!r} is no reference to a variable"
            log.add(location, message, "write ${name}, or $${ for a literal ${")
            return None
        variable = self._variables.get(name)
        if variable is None:
            remedy = nearest(name, self._variables) if self._variables else "define it under `vars:`"
            log.add(location, f"variable {name!r} is not defined", remedy)
        elif isinstance(variable, BrokenNode):
            log.spoil()
        else:
            return variable
        return None
