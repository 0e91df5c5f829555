"""A trace as it grows, step by step of the model."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import numpy as np

from ktitan.errors import UnsupportedError
from ktitan.tiers.trace import Trace

__all__ = ["MOST_DECODED", "MOST_TRACE_BYTES", "StepLog"]

# A step of more tokens is (part of) a prompt, as for the store (csrc/tiers/store.cpp).
MOST_DECODED = 8
# A trace ends there: 70,000 tokens of 58 layers with 8 of 256 experts. While it is written it is held twice.
MOST_TRACE_BYTES = 256 << 20

logger = logging.getLogger(__name__)


@dataclass
class _Step:
    """The layers of a step so far, by their place in the trace."""

    tokens: int
    topk: dict[int, np.ndarray] = field(default_factory=dict)
    weights: dict[int, np.ndarray] = field(default_factory=dict)
    predicted: dict[int, np.ndarray] = field(default_factory=dict)


class StepLog:
    """Choices of L layers, in the order in which a model makes them.

    A step is one pass over the layers. It counts once all of them have chosen for the same tokens: one that an error or
    an interrupt ended is left out. Steps beyond `MOST_TRACE_BYTES` are left out, too, with one warning. Nothing here
    ends the pass that it records: what cannot be a trace is an error in `trace`.

    Args:
        layer_ids: [L], numbers of the decoder layers.
        experts: E.
    """

    def __init__(self, layer_ids: list[int], experts: int) -> None:
        self.tokens = 0
        self._layer_ids = layer_ids
        self._experts = experts
        self._starts: list[int] = []
        self._steps: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._foreseen: dict[int, np.ndarray] = {}
        self._now: _Step | None = None
        self._in_prompt = False
        self._bytes = 0
        self._is_full = False
        self._is_uneven = False

    def foretell(self, layer: int, experts: np.ndarray) -> None:
        """What is foreseen of the layer at this place, before it chooses: [T, P]."""
        self._foreseen[layer] = experts.astype(np.int16)

    def note(self, layer: int, index: np.ndarray, weights: np.ndarray) -> None:
        """What the layer at this place has chosen: [T, K] and [T, K]. The first place begins a step."""
        if layer == 0 or self._now is None or self._now.tokens != len(index):
            self._now = _Step(len(index))
        self._now.topk[layer] = index.astype(np.uint16)
        self._now.weights[layer] = weights.astype(np.float16)
        foreseen = self._foreseen.pop(layer, None)
        if foreseen is not None and len(foreseen) == len(index):
            self._now.predicted[layer] = foreseen
        if len(self._now.topk) == len(self._layer_ids):
            self._keep(self._now)
            self._now = None

    def trace(self, model: str) -> Trace | None:
        """All steps that are whole; None where there are none.

        Raises:
            UnsupportedError: layers chose different numbers of experts.
        """
        if self._is_uneven:
            raise UnsupportedError(
                "routing cannot be recorded: layers choose different numbers of experts", remedy="take another model"
            )
        if not self._steps:
            return None
        topk, weights, predicted = (np.concatenate(arrays, axis=1) for arrays in zip(*self._steps, strict=True))
        starts = np.array([*self._starts, self.tokens], np.int32)
        found = predicted if (predicted >= 0).any() else None
        return Trace(topk, weights, starts, np.array(self._layer_ids, np.int32), self._experts, found, model)

    def _keep(self, step: _Step) -> None:
        places = range(len(self._layer_ids))
        chosen = {step.topk[place].shape[1] for place in places}
        # Not even between steps: the arrays of a trace are one block.
        if self._steps:
            chosen.add(self._steps[0][0].shape[2])
        if len(chosen) > 1:
            self._is_uneven = True
        if self._is_uneven:
            return
        most = min(2 * chosen.pop(), self._experts)
        nothing = np.full((step.tokens, most), -1, np.int16)
        arrays = (
            np.stack([step.topk[place] for place in places]),
            np.stack([step.weights[place] for place in places]),
            np.stack([step.predicted.get(place, nothing) for place in places]),
        )
        size = sum(array.nbytes for array in arrays)
        if self._is_full or self._bytes + size > MOST_TRACE_BYTES:
            if not self._is_full:
                logger.warning("the trace is full: what comes after its %d tokens is not recorded", self.tokens)
            self._is_full = True
            return
        is_prompt = step.tokens > MOST_DECODED
        if not self._starts or (is_prompt and not self._in_prompt):
            self._starts.append(self.tokens)
        self._in_prompt = is_prompt
        self._steps.append(arrays)
        self._bytes += size
        self.tokens += step.tokens
