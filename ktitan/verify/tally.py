"""From logits to figures: a block of positions at a time, in float64.

Shape letters: T tokens of a chunk, V vocabulary. For a position with the reference's distribution P, the model's Q (the
softmax of their logits) and the token x that follows, in nats:

    nll = -ln Q(x)
    kld = KL(P || Q) = sum over v of P(v) (ln P(v) - ln Q(v))
    same = argmax Q == argmax P

Means go over all scored positions; kld_p99 is their 99th percentile with linear interpolation between neighbours
(numpy's default). The definitions are those of llama.cpp's tools/perplexity/perplexity.cpp, which scores only the
second half of each window and keeps the reference's logits in 16 bits; here positions 1 to the end of each window
count, and logits keep their own dtype.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch

from ktitan.errors import UnsupportedError

__all__ = ["Tally"]

# Float64 copies of a chunk's logits are made for as many positions at a time as fit in this.
BLOCK_BYTES = 32 << 20


@dataclass
class Tally:
    """Figures of the positions seen so far; 25 bytes a position."""

    nll: list[np.ndarray] = field(default_factory=list)
    reference_nll: list[np.ndarray] = field(default_factory=list)
    kld: list[np.ndarray] = field(default_factory=list)
    same: list[np.ndarray] = field(default_factory=list)

    def add(self, logits: torch.Tensor, targets: torch.Tensor, reference: torch.Tensor | None, where: str) -> None:
        """Take the positions of one chunk.

        Args:
            logits: [T, V] of the model.
            targets: [T] int64, the token that follows each position.
            reference: [T, V] of the reference, on any device; None for none.
            where: what to call the chunk in an error.

        Raises:
            UnsupportedError: figures that are no finite numbers.
        """
        step = max(1, BLOCK_BYTES // (8 * logits.shape[-1]))
        targets = targets.to(logits.device)
        for start in range(0, len(logits), step):
            part = slice(start, start + step)
            found = logits[part].double().log_softmax(-1)
            self._note(self.nll, -found.gather(-1, targets[part, None])[:, 0], where)
            if reference is None:
                continue
            expected = reference[part].to(logits.device).double().log_softmax(-1)
            self._note(self.reference_nll, -expected.gather(-1, targets[part, None])[:, 0], where)
            self.same.append((found.argmax(-1) == expected.argmax(-1)).cpu().numpy())
            self._note(self.kld, _divergence(expected, found), where)

    @staticmethod
    def _note(figures: list[np.ndarray], values: torch.Tensor, where: str) -> None:
        if not bool(torch.isfinite(values).all()):
            raise UnsupportedError(
                "the logits give figures that are not finite numbers",
                where,
                "compute in float32 (dtype), and check the weights",
            )
        figures.append(values.cpu().numpy())


def _divergence(expected: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    """KL(P || Q) [T] from ln P and ln Q [T, V]; what P rules out (-inf) adds nothing."""
    shares, gaps = expected.exp(), expected - found
    sums = torch.linalg.vecdot(shares, gaps)
    if bool(torch.isfinite(sums).all()):
        return sums
    return torch.where(shares > 0, shares * gaps, 0.0).sum(-1)


def mean_and_error(values: np.ndarray) -> tuple[float, float | None]:
    """The mean and its standard error as if positions were independent; None for a single one."""
    count = len(values)
    spread = float(values.std(ddof=1)) / math.sqrt(count) if count > 1 else None
    return float(values.mean()), spread
