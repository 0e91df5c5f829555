"""One entry of a KTransformers file, read and checked, before it is translated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ktitan.registry import nearest
from ktitan.rules.faultlog import FaultLog
from ktitan.rules.ktransformers.operators import DEFAULT, OPERATORS, Target
from ktitan.rules.ktransformers.reading import boolean, is_none, mapping, text
from ktitan.rules.ktransformers.remarks import Remarks
from ktitan.rules.nodes import Entry as Value
from ktitan.rules.nodes import Location, Node, shorten
from ktitan.rules.regex import compile_regex

__all__ = ["Entry", "read_entry"]

_RULE = "a rule has `match:` with name, class or both, and `replace:` with class and kwargs"
_PATTERN = "write a regex, such as ^model\\.layers\\.(0|[1-9])\\."
_CLASS_PATH = "write a class in full, such as torch.nn.Linear"


@dataclass(frozen=True)
class Entry:
    """One rule as KTransformers reads it.

    Attributes:
        location: where the rule begins.
        name: pattern that is searched in a module's path.
        cls: dotted path of the module's class or a base.
        operator: the class that is put in, or "default".
        target: what that is here.
        kwargs: as written.
        recursive: the modules below are matched, too.
        places: where `name`, `class` and `replace` stand.
        sound: nothing in it was found faulty.
    """

    location: Location
    name: str | None
    cls: str | None
    operator: str
    target: Target
    kwargs: Mapping[str, Value]
    recursive: bool
    places: Mapping[str, Location]
    sound: bool

    def kwarg(self, name: str) -> Node | None:
        """The value of a kwarg, or None."""
        return self.kwargs[name].value if name in self.kwargs else None

    def place(self, name: str) -> Location:
        """Where a kwarg stands; the operator's place for one that is not given."""
        return self.kwargs[name].key_location if name in self.kwargs else self.places["replace"]


def read_entry(node: Node, log: FaultLog, remarks: Remarks) -> Entry | None:
    """The rule that `node` describes, as far as it can be read; None when it is no rule."""
    before = log.count
    fields = mapping(node, "a rule", log, _RULE)
    for key in ("match", "replace") if log.count == before else ():
        if key not in fields:
            log.add(node.location, f"the rule has no {key!r}", _RULE)
    if log.count > before:
        return None
    match = mapping(fields["match"].value, "match", log, "it has the keys name and class")
    replace = mapping(fields["replace"].value, "replace", log, "it has the keys class and kwargs")
    name, cls = _name(match, log), _class(match, log)
    if log.count == before and name is None and cls is None:
        log.add(fields["match"].value.location, "match has neither 'name' nor 'class'", "give one or both")
    operator = _operator(replace, log)
    given = replace.get("kwargs")
    kwargs = {} if given is None or is_none(given.value) else mapping(given.value, "kwargs", log, "write name: value")
    recursive = boolean(fields["recursive"].value, "recursive", log) if "recursive" in fields else True
    for level, keys in ((fields, ("match", "replace", "recursive")), (match, ("name", "class")),
                        (replace, ("class", "kwargs"))):  # fmt: skip
        for key in level.keys() - set(keys):
            remarks.add(f"key {key!r} means nothing to KTransformers: it is left out", level[key].key_location)
    places = {key: value.value.location for key, value in match.items()}
    places["replace"] = (replace.get("class") or fields["replace"]).value.location
    target = OPERATORS.get(operator.rpartition(".")[2], DEFAULT)
    sound = log.count == before
    return Entry(node.location, name, cls, operator, target, kwargs, recursive, places, sound)


def _name(match: Mapping[str, Value], log: FaultLog) -> str | None:
    """`name:`, which must compile."""
    if "name" not in match:
        return None
    node = match["name"].value
    pattern = text(node, "name", log, _PATTERN)
    return None if pattern is None or compile_regex(pattern, node.location, log) is None else pattern


def _class(match: Mapping[str, Value], log: FaultLog) -> str | None:
    """`class:`, a dotted path; KTransformers imports it, here it is compared by name."""
    if "class" not in match:
        return None
    node = match["class"].value
    path = text(node, "class", log, _CLASS_PATH)
    if path is not None and not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", path):
        log.add(node.location, f"{shorten(path)!r} is no path of a class", _CLASS_PATH)
        return None
    return path


def _operator(replace: Mapping[str, Value], log: FaultLog) -> str:
    """`replace: class:`, "default" when it is not given; an operator without a counterpart is a fault."""
    if "class" not in replace:
        return "default"
    node = replace["class"].value
    path = text(node, "class", log, "name an operator of KTransformers, or default")
    if path is None or path == "default":
        return "default"
    package, _, name = path.rpartition(".")
    if package.split(".")[0] == "ktransformers" and name in OPERATORS:
        return path
    if package.split(".")[0] == "ktransformers":
        remedy = f"write `class: default` to leave the module as it is; {nearest(name, OPERATORS)}"
        log.add(node.location, f"KTransformers' operator {shorten(name)!r} has no counterpart here", remedy)
    else:
        remedy = "operators of ktitan and your own go into a file that starts with `version: 1` and `rules:`"
        log.add(node.location, f"{shorten(path)!r} is no operator of KTransformers", remedy)
    return "default"
