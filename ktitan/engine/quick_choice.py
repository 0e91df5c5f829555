"""A draw from the vocabulary, or its likeliest part, without passes over a sorted one, where that is sure to be the
token of the plain way. (The likeliest token and top-k: `ktitan.native.choosing`.)

Of [V] logits only the few that can be chosen are sorted. What transformers' processors cut by float32 sums, these count
in float64: where a cut or a draw lies closer to a boundary than the rounding of either, `choose` gives None, and the
plain way (`ktitan.engine.sampling.Sampler`) decides.

Shape letters: V vocabulary, C candidates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

__all__ = ["Penalised", "QuickChoice"]

# The vocabulary as _STRIPES rows, whose columns are blocks: their maxima cost one pass and find the largest logits.
_STRIPES = 64
# Most blocks that are looked into and candidates that are sorted; blocks at first, where only a sum is limited.
_MOST_BLOCKS = 1024
_MOST_CANDIDATES = 4096
_FIRST_BLOCKS = 64
# Relative: a logit this close below another one may equal it once both were divided and rounded.
_DIVISION = 1e-6
# Of float32 probabilities (1 in all): what rounding may do to the sum of a sorted vocabulary, or of `_weights`.
_ROUNDING = 1e-5
# Up to here scores are multiplied instead of divided, and their exp is taken as it is: half of _ROUNDING at most.
_SAFE = 40.0
# A smaller vocabulary is as quick in the plain way.
_LEAST_VOCABULARY = 2 * _STRIPES


class Penalised:
    """The repetition penalty: it acts once on a token, however often that stands in the sequence.

    Args:
        penalty: > 0; logits above 0 are divided by it, those below multiplied (transformers'
            `RepetitionPenaltyLogitsProcessor`).
        ids: the sequence so far.
    """

    def __init__(self, penalty: float, ids: Iterable[int]) -> None:
        self._penalty = np.float32(penalty)
        self._known = set(ids)
        self._ids = np.array(list(self._known), dtype=np.int64)
        self._count = self._ids.shape[0]

    @property
    def ids(self) -> np.ndarray:
        """Each token of the sequence once, int64."""
        return self._ids[: self._count]

    def add(self, token: int) -> None:
        """The sequence has gone on with `token`."""
        if token in self._known:
            return
        self._known.add(token)
        if self._count == self._ids.shape[0]:
            self._ids = np.concatenate((self._ids, np.empty(max(64, self._count), dtype=np.int64)))
        self._ids[self._count] = token
        self._count += 1

    def applied(self, logits: np.ndarray) -> np.ndarray:
        """A copy of float32 [V] with the penalty."""
        penalised = logits.copy()
        old = penalised[self.ids]
        penalised[self.ids] = np.where(old < 0, old * self._penalty, old / self._penalty)
        return penalised


@dataclass(frozen=True)
class QuickChoice:
    """A draw by temperature, then top-p, as transformers' warpers cut.

    Attributes:
        temperature: > 0.
        top_p: in (0, 1]; 1: off.
    """

    temperature: float
    top_p: float

    def choose(self, logits: np.ndarray, uniform: float) -> int | None:
        """The token of float32 [V] whose part of the cumulative probabilities holds `uniform` [0, 1).

        None where this cannot say it for certain: the plain way must.
        """
        size = logits.shape[0]
        if size < _LEAST_VOCABULARY:
            return None
        columns = logits[: size - size % _STRIPES].reshape(_STRIPES, -1)
        maxima = columns.max(axis=0)
        best = float(np.maximum(maxima.max(), logits[columns.size :].max(initial=-math.inf)))  # NaN, if one is
        if not math.isfinite(best):
            return None
        weights, largest = self._weights(logits, best)
        if self.top_p == 1:
            return _drawn_from_all(weights, uniform)
        total = float(_stripe_sums(weights).sum(dtype=np.float64)) / largest
        return self._of_most_mass(logits, maxima, total, uniform)

    def _weights(self, logits: np.ndarray, best: float) -> tuple[np.ndarray, float]:
        """exp(logits / temperature) but for a factor, and the largest of them."""
        highest = best / self.temperature
        if abs(highest) < _SAFE:
            scores: np.ndarray = logits * np.float32(1 / self.temperature)
        else:
            scores, highest = logits / np.float32(self.temperature), 0.0
            scores -= np.float32(best) / np.float32(self.temperature)
        return np.exp(scores, out=scores), math.exp(highest)

    def _of_most_mass(self, logits: np.ndarray, maxima: np.ndarray, total: float, uniform: float) -> int | None:
        """Candidates until they hold enough of `total`, which all do, the largest weight being 1."""
        blocks = _FIRST_BLOCKS
        while blocks < maxima.shape[0]:
            found = self._candidates(logits, maxima, blocks)
            if found is None:
                return None
            tokens, scores = found
            if _mass(scores) > (self.top_p + 2 * _ROUNDING) * total:
                order = np.argsort(-scores, kind="stable")
                return self._drawn(tokens[order], scores[order], total, uniform)
            blocks *= 8
        return None

    def _candidates(self, logits: np.ndarray, maxima: np.ndarray, blocks: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Tokens [C] and scores [C] of all logits that are as large as the `blocks`-th largest maximum, or nearly."""
        limit = float(np.partition(maxima, maxima.shape[0] - blocks)[maxima.shape[0] - blocks])
        limit -= abs(limit) * _DIVISION
        if not math.isfinite(limit):
            return None
        chosen = np.flatnonzero(maxima >= limit)
        if chosen.shape[0] > _MOST_BLOCKS:
            return None
        width, rows = maxima.shape[0], np.arange(_STRIPES)[:, None]
        tokens = (rows * width + chosen).ravel()
        tokens = np.concatenate((tokens, np.arange(_STRIPES * width, logits.shape[0])))
        values = logits[tokens]
        large = np.flatnonzero(values >= limit)
        if large.shape[0] > _MOST_CANDIDATES:
            return None
        return tokens[large], values[large] / np.float32(self.temperature)

    def _drawn(self, tokens: np.ndarray, scores: np.ndarray, total: float, uniform: float) -> int | None:
        """Cut by top-p and draw. Candidates are best first; `total` is the sum of all weights, of which the first one's
        is 1.
        """
        weights = np.exp(scores.astype(np.float64) - float(scores[0]))
        sums = weights.cumsum() / total
        kept = 1 + int(np.count_nonzero(sums[:-1] < self.top_p))  # a token stays while those before it are less
        nearest = float(np.abs(sums[max(0, kept - 2) : kept] - self.top_p).min())
        if nearest < _ROUNDING or (kept < scores.shape[0] and scores[kept] == scores[kept - 1]):
            return None
        tokens, weights = tokens[:kept], weights[:kept]
        order = tokens.argsort()
        cumulative = (weights / weights.sum())[order].cumsum()
        point = min(uniform * float(cumulative[-1]), math.nextafter(float(cumulative[-1]), 0))
        return int(tokens[order[int(np.searchsorted(cumulative, point, side="right"))]])


def _stripe_sums(weights: np.ndarray) -> np.ndarray:
    """Sums of [V] float32 by 64 at a time, so that rounding stays that of 64 numbers."""
    size = weights.shape[0] - weights.shape[0] % _STRIPES
    sums: np.ndarray = weights[:size].reshape(_STRIPES, -1).sum(axis=0)
    return np.append(sums, weights[size:].sum())


def _mass(scores: np.ndarray) -> float:
    """Sum of exp(scores), the largest being 1."""
    return float(np.exp((scores - scores.max()).astype(np.float64)).sum())


def _drawn_from_all(weights: np.ndarray, uniform: float) -> int | None:
    """A draw from all of [V] float32 weights, unless `uniform` lies too near to a boundary."""
    size = weights.shape[0] - weights.shape[0] % _STRIPES
    runs = torch.from_numpy(weights[:size]).view(-1, _STRIPES).sum(dim=1).numpy()  # numpy takes several times as long
    sums = np.append(runs, weights[size:].sum()).cumsum(dtype=np.float64)
    total = float(sums[-1])
    point = uniform * total
    block = int(np.searchsorted(sums, point, side="right"))
    if block >= sums.shape[0]:
        return None
    start = float(sums[block - 1]) if block else 0.0
    first = block * _STRIPES
    bounds = start + weights[first : first + _STRIPES].cumsum(dtype=np.float64)
    place = int(np.searchsorted(bounds, point, side="right"))
    if place >= bounds.shape[0]:
        return None
    below = float(bounds[place - 1]) if place else start
    nearest = min(point - below, float(bounds[place]) - point)
    return first + place if nearest > _ROUNDING * total else None
