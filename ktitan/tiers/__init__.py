"""The three tiers that weights live in: VRAM, RAM, NVMe."""

from __future__ import annotations

from ktitan.tiers.budget import TIERS, UNLIMITED, Budget, format_bytes, parse_budget, parse_bytes

__all__ = ["TIERS", "UNLIMITED", "Budget", "format_bytes", "parse_budget", "parse_bytes"]
