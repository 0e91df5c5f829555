"""Injection: a plan carried out on a user's model, and taken back."""

from __future__ import annotations

from ktitan.inject.apply import apply_plan, refuse_injected
from ktitan.inject.handle import Handle

__all__ = ["Handle", "apply_plan", "refuse_injected"]
