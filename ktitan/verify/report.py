"""What `verify` finds, as plain data."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ktitan.verify.tally import Tally, mean_and_error

__all__ = ["VerifyReport"]


@dataclass(frozen=True)
class VerifyReport:
    """Figures of one model; those that need a reference are None without one. `ktitan.verify.tally` has the formulas.

    Attributes:
        model: as it was given.
        against: the reference as it was given, or None.
        source: where the token ids come from.
        rows: windows scored.
        tokens: positions scored: all of a window but its first.
        nll: mean negative log-likelihood, nats a token.
        nll_error: standard error of that mean.
        ppl: perplexity, exp(nll).
        reference_nll: the reference's own mean NLL on the same positions.
        kld: mean KL(reference || model), nats a token.
        kld_error: standard error of that mean.
        kld_p99: 99th percentile of the positions' KL.
        kld_max: largest KL of a position.
        top1: share of positions where both find the same token likeliest.
    """

    model: str
    against: str | None
    source: str
    rows: int
    tokens: int
    nll: float
    nll_error: float | None
    ppl: float
    reference_nll: float | None = None
    kld: float | None = None
    kld_error: float | None = None
    kld_p99: float | None = None
    kld_max: float | None = None
    top1: float | None = None

    @classmethod
    def from_tally(cls, tally: Tally, model: str, against: str | None, source: str, rows: int) -> VerifyReport:
        """The means and percentiles of a finished tally."""
        losses = np.concatenate(tally.nll)
        nll, error = mean_and_error(losses)
        compared: dict[str, float | None] = {}
        if against is not None:
            divergence = np.concatenate(tally.kld)
            kld, kld_error = mean_and_error(divergence)
            compared = {
                "reference_nll": float(np.concatenate(tally.reference_nll).mean()),
                "kld": kld,
                "kld_error": kld_error,
                "kld_p99": float(np.percentile(divergence, 99)),
                "kld_max": float(divergence.max()),
                "top1": float(np.concatenate(tally.same).mean()),
            }
        return cls(model, against, source, rows, len(losses), nll, error, _exp(nll), **compared)

    def to_json(self) -> dict[str, Any]:
        """All attributes as one JSON object."""
        return asdict(self)


def _exp(nll: float) -> float:
    """Perplexity; the largest number where it would be larger."""
    return math.exp(min(nll, 700.0))
