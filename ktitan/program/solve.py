"""From numbers to the formula that made them: what a forward handed to its children, in terms of what it had.

Every value is a random tensor, so bits that agree tell which sum or product it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, permutations

import torch

__all__ = ["Formula", "Known", "Solver"]


@dataclass(frozen=True)
class Formula:
    """How a value is made of earlier ones.

    Attributes:
        kind: "add" of two, "scale" of one, "last" of one (the last token).
        parts: numbers of values.
        factor: of "scale".
    """

    kind: str
    parts: tuple[int, ...]
    factor: float = 1.0


@dataclass(frozen=True)
class Known:
    """A value: a tensor [1, T, width] and, where it was derived, how."""

    tensor: torch.Tensor
    formula: Formula | None = None


class Solver:
    """The values of one forward, in the order in which they came to be."""

    def __init__(self) -> None:
        self.values: list[Known] = []

    def know(self, tensor: torch.Tensor) -> int:
        """The number of a value that was given."""
        self.values.append(Known(tensor))
        return len(self.values) - 1

    def solve(self, target: torch.Tensor) -> int | None:
        """The number of the value that `target` is; new ones are derived. None: no formula makes it."""
        for attempt in (self._same, self._last, self._scaled, self._sum, self._scaled_sum, self._long_sum):
            found = attempt(target)
            if found is not None:
                return found
        return None

    def _same(self, target: torch.Tensor) -> int | None:
        return next((number for number, tensor in self._like(target) if torch.equal(tensor, target)), None)

    def _last(self, target: torch.Tensor) -> int | None:
        if target.dim() != 3 or target.shape[1] != 1:
            return None
        for number in reversed(range(len(self.values))):
            tensor = self.values[number].tensor
            if tensor.dim() == 3 and torch.equal(tensor[:, -1:], target):
                return self._derive(target, Formula("last", (number,)))
        return None

    def _scaled(self, target: torch.Tensor) -> int | None:
        for number, tensor in self._like(target):
            factor = _factor(target, tensor)
            if factor is not None:
                return self._derive(target, Formula("scale", (number,), factor))
        return None

    def _sum(self, target: torch.Tensor) -> int | None:
        for (a, first), (b, second) in combinations(self._like(target), 2):
            if torch.equal(first + second, target):
                return self._derive(target, Formula("add", (a, b)))
        return None

    def _scaled_sum(self, target: torch.Tensor) -> int | None:
        """a + factor * b, the product rounded before the sum."""
        for (a, first), (b, second) in permutations(self._like(target), 2):
            for factor in _candidates(target - first, second):
                product = second * factor
                if torch.equal(first + product, target):
                    scaled = self._derive(product, Formula("scale", (b,), factor))
                    return self._derive(target, Formula("add", (a, scaled)))
        return None

    def _long_sum(self, target: torch.Tensor) -> int | None:
        """(a + b) + c."""
        for (a, first), (b, second) in combinations(self._like(target), 2):
            half = first + second
            for c, third in self._like(target):
                if c not in (a, b) and torch.equal(half + third, target):
                    return self._derive(target, Formula("add", (self._derive(half, Formula("add", (a, b))), c)))
        return None

    def _like(self, target: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
        """Numbered values of the target's shape, the latest first."""
        numbered = [(number, value.tensor) for number, value in enumerate(self.values)]
        return [(number, tensor) for number, tensor in reversed(numbered) if tensor.shape == target.shape]

    def _derive(self, tensor: torch.Tensor, formula: Formula) -> int:
        self.values.append(Known(tensor, formula))
        return len(self.values) - 1


def _factor(target: torch.Tensor, tensor: torch.Tensor) -> float | None:
    return next((one for one in _candidates(target, tensor) if torch.equal(tensor * one, target)), None)


def _candidates(target: torch.Tensor, tensor: torch.Tensor) -> Iterator[float]:
    """float32 numbers that may have made `target` of `tensor`; none where the quotients differ."""
    wide = tensor.double()
    large = wide.abs() > 0.5 * wide.abs().max()
    quotients = target.double()[large] / wide[large]
    middle = quotients.median()
    if not bool(torch.isfinite(middle)) or middle == 0 or (quotients / middle - 1).abs().max() > 1e-4:
        return
    best = middle.float()
    for one in (best, best.nextafter(torch.tensor(torch.inf)), best.nextafter(torch.tensor(-torch.inf))):
        yield float(one)
