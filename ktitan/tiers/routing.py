"""A router as a formula: the experts that it chooses, and those that it would choose, seen from an earlier layer.

The twin of kt_predict in torch: for tests, for recording, and for what computes elsewhere than on the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from ktitan.native.predict import Predictor, RouterForm

__all__ = ["Predictor", "Router", "RouterForm"]


@dataclass(frozen=True)
class Router:
    """scores = act(weight x + bias) + correction; the best K of them, with groups only of the best groups.

    Attributes:
        weight: [E, H].
        form: from scores to experts.
        bias: [E] float32, or None.
        correction: [E] float32, or None.
    """

    weight: torch.Tensor
    form: RouterForm
    bias: torch.Tensor | None = None
    correction: torch.Tensor | None = None

    @property
    def experts(self) -> int:
        """E."""
        return int(self.weight.shape[0])

    def choose(self, hidden: torch.Tensor, most: int, scale: torch.Tensor | None = None) -> torch.Tensor:
        """hidden [T, H], times `scale` [H] -> the best `most` experts, [T, most], best first, then -1."""
        device = self.weight.device
        rows = hidden.to(device, torch.float32)
        if scale is not None:
            rows = rows * scale.to(device)
        bias = None if self.bias is None else self.bias.to(device)
        scores = functional.linear(rows, self.weight.to(torch.float32), bias)
        if self.form.sigmoid:
            scores = scores.sigmoid()
        if self.correction is not None:
            scores = scores + self.correction.to(device)
        best = self._of_best_groups(scores).topk(most, dim=-1)
        return best.indices.masked_fill(best.values.isneginf(), -1)

    def predictor(self, scale: torch.Tensor | None = None, first_record: int = 0) -> Predictor:
        """The same for native code; the weight is shared, not copied.

        Raises:
            UnsupportedError: the router is not on the CPU, or of a dtype that has no kernel.
        """
        return Predictor(
            self.weight,
            self.form,
            scale=scale,
            bias=self.bias,
            correction=self.correction,
            first_record=first_record,
        )

    def _of_best_groups(self, scores: torch.Tensor) -> torch.Tensor:
        form = self.form
        if form.groups == 1:
            return scores
        grouped = scores.view(len(scores), form.groups, -1)
        kept = grouped.topk(form.group_best, dim=-1).values.sum(-1).topk(form.groups_kept, dim=-1).indices
        closed = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter_(1, kept, False)
        return grouped.masked_fill(closed[..., None], float("-inf")).flatten(1)
