"""Chooses rules and placements for users who give none."""

from __future__ import annotations

from ktitan.planner.auto import auto_rules, packaged_rules
from ktitan.planner.stream import stream_to_fit

__all__ = ["auto_rules", "packaged_rules", "stream_to_fit"]
