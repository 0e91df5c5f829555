"""Rule files with their includes and variables to one `RuleSet`.

Order: a file's own rules come first, then those of its includes in the order in which they are listed, each with its
own includes after it. Since the first match wins, a file overrides what it includes. A file that is reached twice
counts once, at its first place. A file with a list at the top is one of KTransformers, which is translated.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ktitan.rules.faultlog import FaultLog
from ktitan.rules.fields import Fields
from ktitan.rules.grammar import parse_rule
from ktitan.rules.includes import IncludeFolders, read_file
from ktitan.rules.ktransformers import convert
from ktitan.rules.nodes import BrokenNode, Entry, ListNode, Location, MapNode, Node, ScalarNode, describe
from ktitan.rules.objects import read_object
from ktitan.rules.ruleset import Note, Rule, RuleSet
from ktitan.rules.variables import Scope
from ktitan.rules.yaml_lines import read_yaml

__all__ = ["VERSION", "parse_object", "parse_rules", "parse_text"]

VERSION = 1
_START = "start the file with `version: 1`"
_KTRANSFORMERS_KWARGS = frozenset({"generate_device", "generate_op", "prefill_device", "prefill_op"})


def parse_rules(path: str | Path, variables: Mapping[str, str] | None = None, *, keep_prefill: bool = False) -> RuleSet:
    """The rules of a file and of all that it includes.

    Nothing is raised for what is wrong with the files: every fault is in `RuleSet.faults`, the good rules in `rules`.

    Args:
        path: a version 1 rule file, or one of KTransformers.
        variables: values that override `vars:` of the same names.
        keep_prefill: of a KTransformers file, take over all operators for prompts; see `ktransformers.convert`.
    """
    name = os.fspath(path)
    composer = _Composer(variables, IncludeFolders.around(name), keep_prefill)
    text = read_file(name, Location(name), composer.log)
    if text is not None:
        composer.add(_Source(name, os.path.dirname(os.path.abspath(name))), read_yaml(text, name, composer.log))
    return composer.result(name)


def parse_text(text: str, origin: str = "<rules>", variables: Mapping[str, str] | None = None) -> RuleSet:
    """The rules of a YAML text; its includes are looked up among the packaged rule files only."""
    composer = _Composer(variables, IncludeFolders.around(None))
    composer.add(_Source(origin, None), read_yaml(text, origin, composer.log))
    return composer.result(origin)


def parse_object(rules: Any, origin: str = "", variables: Mapping[str, str] | None = None) -> RuleSet:
    """The rules of a Python structure: a dict like a whole rule file, or just the list of rules.

    Places in faults read like `rules[3].match.name`, after `origin` when it is given. Includes are looked up among the
    packaged rule files only.
    """
    composer = _Composer(variables, IncludeFolders.around(None))
    node = read_object(rules, origin, composer.log)
    if isinstance(node, ListNode) and not _is_ktransformers(node):
        version = ScalarNode(node.location, VERSION, str(VERSION))
        node = MapNode(node.location, {"version": Entry(node.location, version), "rules": Entry(node.location, node)})
    composer.add(_Source(origin or "rules", None), node)
    return composer.result(origin or "rules")


@dataclass(frozen=True)
class _Source:
    """A file (or text) on its way in: its name in places, its folder, and the files that led to it."""

    name: str
    folder: str | None
    chain: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """The same for every way to name the same file."""
        return self.name if self.folder is None else os.path.realpath(self.name)


class _Composer:
    """Reads a tree of files: first all of their variables, then, in order, their rules."""

    def __init__(
        self, variables: Mapping[str, str] | None, folders: IncludeFolders, keep_prefill: bool = False
    ) -> None:
        self.log = FaultLog()
        self._keep_prefill = keep_prefill
        self._notes: list[Note] = []
        self._scope = Scope(variables)
        self._folders = folders
        self._files: list[str] = []
        self._seen: set[str] = set()
        self._rules: list[Node | tuple[Rule, ...]] = []  # of each file, still to be parsed or translated

    def add(self, source: _Source, node: Node | None) -> None:
        """Take the root node of a file and read its includes."""
        self._files.append(source.name)
        self._seen.add(source.identity)
        if isinstance(node, ListNode):
            translated, notes = convert(node, self.log, self._keep_prefill)
            self._rules.append(translated)
            self._notes += notes
            return
        fields = self._top_level(node)
        if fields is None:
            return
        self._check_version(fields)
        rules = fields.get("rules")
        if rules is not None:
            self._rules.append(rules)
        variables = fields.get("vars")
        if variables is not None:
            self._scope.define(variables, self.log)
        includes = fields.get("include")
        if includes is not None:
            self._include_all(self._scope.expand(includes, self.log), source)
        if not source.chain and not self._rules and not self.log.count:
            self.log.add(fields.location, "there are no rules, here or in an include", "add `rules:` with a list")

    def result(self, origin: str) -> RuleSet:
        """Parse the rules of all files that were added."""
        rules: list[Rule] = []
        for node in self._rules:
            if isinstance(node, tuple):
                rules += node
            elif isinstance(node, ListNode):
                found = (parse_rule(self._scope.expand(item, self.log), self.log) for item in node.items)
                rules += (rule for rule in found if rule is not None)
            elif not isinstance(node, BrokenNode):
                message = f"rules must be a list, found {describe(node)}"
                self.log.add(node.location, message, "begin each rule with `- match:`")
        return RuleSet(tuple(rules), origin, self.log.faults(self._files), tuple(self._notes))

    def _top_level(self, node: Node | None) -> Fields | None:
        if isinstance(node, ScalarNode) and node.value is None:
            self.log.add(node.location, "the rule file is empty", "start it with `version: 1` and `rules:`")
            return None
        return None if node is None else Fields.of(node, "the rule file", self.log)

    def _check_version(self, fields: Fields) -> None:
        node = fields.require("version", _START)
        if node is None or isinstance(node, BrokenNode):
            return
        value = node.value if isinstance(node, ScalarNode) else None
        if isinstance(value, bool) or not isinstance(value, int):
            self.log.add(node.location, f"version must be a number, found {describe(node)}", _START)
        elif value != VERSION:
            message = f"rule files of version {value} are not known; this ktitan reads version {VERSION}"
            self.log.add(node.location, message, "update ktitan, or write the file as version 1")

    def _include_all(self, node: Node, source: _Source) -> None:
        if isinstance(node, BrokenNode):
            return
        if not isinstance(node, ListNode):
            message = f"include must be a list of files, found {describe(node)}"
            self.log.add(node.location, message, "write `include: [parts/attention.yaml]`")
            return
        for item in node.items:
            if isinstance(item, ScalarNode) and isinstance(item.value, str) and item.value:
                self._include(item.value, item.location, source)
            elif not isinstance(item, BrokenNode):
                self.log.add(item.location, f"an include must be a path, found {describe(item)}", "name a YAML file")

    def _include(self, name: str, location: Location, source: _Source) -> None:
        path = self._folders.find(name, source.folder, location, self.log)
        if path is None:
            return
        chain = (*source.chain, source.identity)
        included = _Source(_display(path, source), os.path.dirname(path), chain)
        if included.identity in chain:
            names = [*chain[chain.index(included.identity) :], included.identity]
            message = f"files include each other: {' -> '.join(os.path.basename(part) for part in names)}"
            self.log.add(location, message, "remove one of the includes")
        elif included.identity not in self._seen:
            text = read_file(included.name, location, self.log)
            self.add(included, None if text is None else read_yaml(text, included.name, self.log))


def _display(path: str, source: _Source) -> str:
    """An included file's path in the manner of the file that includes it: relative stays relative."""
    relative = os.path.relpath(path, source.folder or os.sep)
    if source.folder is None or os.path.isabs(source.name) or relative.startswith(os.pardir):
        return path
    return os.path.join(os.path.dirname(source.name), relative)


def _is_ktransformers(rules: ListNode) -> bool:
    """Whether a list of rules names KTransformers' operators or per-phase kwargs."""
    for rule in rules.items:
        replace = rule.entries.get("replace") if isinstance(rule, MapNode) else None
        if replace is None or not isinstance(replace.value, MapNode):
            continue
        fields = replace.value.entries
        operator, kwargs = fields.get("class"), fields.get("kwargs")
        if operator and isinstance(operator.value, ScalarNode) and operator.value.text.startswith("ktransformers."):
            return True
        if kwargs and isinstance(kwargs.value, MapNode) and _KTRANSFORMERS_KWARGS & kwargs.value.entries.keys():
            return True
    return False
