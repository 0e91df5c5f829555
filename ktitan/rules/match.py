"""Which modules a rule is about: a regex on the path, a class, layers, and exceptions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["LayerSet", "Match", "layer_of"]


@dataclass(frozen=True)
class LayerSet:
    """Layer numbers as inclusive ranges; a last layer of None means "and all after"."""

    ranges: tuple[tuple[int, int | None], ...]

    @classmethod
    def of(cls, layers: Iterable[int]) -> LayerSet:
        """These layers as the fewest ranges, ascending: 0, 1, 2, 5 is "0-2,5"."""
        ranges: list[tuple[int, int]] = []
        for layer in sorted(set(layers)):
            if ranges and layer == ranges[-1][1] + 1:
                ranges[-1] = (ranges[-1][0], layer)
            else:
                ranges.append((layer, layer))
        return cls(tuple(ranges))

    def __contains__(self, layer: object) -> bool:
        if not isinstance(layer, int):
            return False
        return any(first <= layer and (last is None or layer <= last) for first, last in self.ranges)

    def __str__(self) -> str:
        parts = []
        for first, last in self.ranges:
            parts.append(str(first) if first == last else f"{first}-{'' if last is None else last}")
        return ",".join(parts)


def layer_of(path: str) -> int | None:
    """The first component of a dotted module path that is a whole number; None when there is none."""
    for part in path.split("."):
        if part.isascii() and part.isdigit():
            return int(part)
    return None


@dataclass(frozen=True)
class Match:
    """The conditions of one rule; all that are given must hold, and none of `exclude`.

    Attributes:
        name: regex that must match the whole dotted path.
        cls: a class name, or a dotted `module.qualname`, of the module's class or one of its bases.
        layers: the layer numbers that the path may lie in.
        exclude: the `not:` entries.
    """

    name: re.Pattern[str] | None = None
    cls: str | None = None
    layers: LayerSet | None = None
    exclude: tuple[Match, ...] = ()

    def hits(self, path: str, mro: Sequence[tuple[str, str]]) -> bool:
        """Whether a module is meant.

        Args:
            path: dotted path in the model, `""` for the root.
            mro: (`__name__`, full dotted `module.qualname`) of each class in `type(module).__mro__`.
        """
        if self.name is not None and not self.name.fullmatch(path):
            return False
        if self.cls is not None and not any(self.cls in names for names in mro):
            return False
        if self.layers is not None and layer_of(path) not in self.layers:
            return False
        return not any(exception.hits(path, mro) for exception in self.exclude)

    def __str__(self) -> str:
        parts = []
        if self.name is not None:
            parts.append(f"name {self.name.pattern}")
        if self.cls is not None:
            parts.append(f"class {self.cls}")
        if self.layers is not None:
            parts.append(f"layers {self.layers}")
        return ", ".join([*parts, *(f"not ({exception})" for exception in self.exclude)])
