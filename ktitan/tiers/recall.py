"""How much of what was demanded had been foreseen: recall of a trace's predictions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ktitan.tiers.trace import Trace

__all__ = ["Recall", "recalls"]


@dataclass(frozen=True)
class Recall:
    """A share of demands that was foreseen.

    Attributes:
        of: "all" layers, those "between" two with experts, those after one "from dense", or the "misses" of a policy.
        guesses: how many experts of a layer count as foreseen: K or 2 K.
        value: the share.
    """

    of: str
    guesses: int
    value: float


def recalls(trace: Trace, hit: np.ndarray | None = None) -> list[Recall]:
    """Recall at K and 2 K where there were predictions; empty without any.

    Args:
        trace: with `predicted`.
        hit: [L, N, K] bool, for the recall of misses.
    """
    if trace.predicted is None:
        return []
    found = []
    for guesses in (trace.chosen, 2 * trace.chosen):
        if guesses > trace.predicted.shape[2]:
            continue
        right = _foreseen(trace.topk, trace.predicted[..., :guesses])
        predicted = np.broadcast_to((trace.predicted[..., 0] >= 0)[..., None], right.shape)
        # The layer before has experts, too.
        between = np.isin(trace.layer_ids - 1, trace.layer_ids)[:, None, None]
        groups = {"all": predicted, "between": predicted & between, "from dense": predicted & ~between}
        if hit is not None:
            groups["misses"] = predicted & ~hit
        found += [Recall(of, guesses, float(right[which].mean())) for of, which in groups.items() if which.any()]
    return found


def _foreseen(topk: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """[L, N, K] bool: is the chosen expert among those foreseen?"""
    right = np.zeros(topk.shape, bool)
    for number in range(predicted.shape[2]):
        right |= topk == predicted[..., number, None]
    return right
