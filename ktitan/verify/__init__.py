"""How good a model is, and how far it is from a reference: NLL, perplexity, KL divergence, top-1 agreement."""

from __future__ import annotations

from ktitan.verify.report import VerifyReport
from ktitan.verify.run import verify_model

__all__ = ["VerifyReport", "verify_model"]
