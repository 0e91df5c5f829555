"""Names for operators and formats: explicit, greppable, with a suggestion when a name is wrong."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Generic, TypeVar

from ktitan.errors import PlanError

if TYPE_CHECKING:
    from ktitan.operator import Operator

__all__ = ["Registry", "nearest", "operators", "register_operator"]

T = TypeVar("T")
OperatorT = TypeVar("OperatorT", bound="type[Operator]")


def nearest(name: str, known: Iterable[str]) -> str:
    """A remedy sentence: the closest known name, or the whole list when nothing is close."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(known)}" if known else "there is none to choose from"


class Registry(Generic[T]):
    """A table of named things of one kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def add(self, name: str, entry: T) -> None:
        """Enter `entry` under `name`.

        Raises:
            PlanError: the name is taken by something else.
        """
        if self._entries.get(name, entry) is not entry:
            raise PlanError(f"{self.kind} {name!r} is registered twice", remedy="choose another name")
        self._entries[name] = entry

    def find(self, name: str) -> T | None:
        """The entry, or None."""
        return self._entries.get(name)

    def get(self, name: str) -> T:
        """The entry.

        Raises:
            PlanError: no such name; the remedy names the nearest one.
        """
        entry = self._entries.get(name)
        if entry is None:
            raise PlanError(f"no {self.kind} named {name!r}", remedy=nearest(name, self._entries))
        return entry

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._entries)

    def remove(self, name: str) -> None:
        """Forget `name` (for tests and interactive use); unknown names are ignored."""
        self._entries.pop(name, None)


# What a plan asks of an operator's class.
_PARTS = ("Config", "supports", "from_module", "load", "forward", "keeps_children", "memory")

operators: Registry[type[Operator]] = Registry("operator")


def register_operator(name: str) -> Callable[[OperatorT], OperatorT]:
    """Class decorator that enters an `Operator` under `name`, e.g. `"linear.torch"`.

    Users call it from their own script before `optimize_and_load`, or pass the script as `--plugin`.
    """

    if not isinstance(name, str) or "." not in name:
        raise PlanError(f"{name!r} is not an operator's name", remedy='write "<kind>.<name>", e.g. "mlp.fused"')

    def enter(cls: OperatorT) -> OperatorT:
        missing = [part for part in _PARTS if not hasattr(cls, part)]
        if missing:
            raise PlanError(
                f"{cls!r} is no operator: it lacks {', '.join(missing)}", name, "derive it from ktitan.Operator"
            )
        if not dataclasses.is_dataclass(cls.Config):
            raise PlanError("its Config is no dataclass", name, "make it a frozen dataclass over ktitan.OperatorConfig")
        operators.add(name, cls)
        cls.operator_name = name
        return cls

    return enter
