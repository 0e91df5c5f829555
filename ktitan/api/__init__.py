"""What users call from Python."""

from __future__ import annotations

from ktitan.api.loading import load, optimize_and_load
from ktitan.api.planning import plan_model
from ktitan.engine.generate import stream

__all__ = ["load", "optimize_and_load", "plan_model", "stream"]
