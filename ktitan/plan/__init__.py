"""The plan: what every module becomes, made before any weight byte is read."""

from __future__ import annotations

from ktitan.plan.make import make_plan
from ktitan.plan.rows import Choice, Decision, Hop, Plan, PlanRow

__all__ = ["Choice", "Decision", "Hop", "Plan", "PlanRow", "make_plan"]
