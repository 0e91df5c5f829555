"""Modules whose weights may stay on the drive: kept ones that a rule leaves there, and those that could be streamed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch import nn

from ktitan.plan.rows import Decision
from ktitan.plan.visit import Visit
from ktitan.registry import operators
from ktitan.rules import KEEP, Replace, Rule

__all__ = ["HOME", "STREAMABLE", "streamed_visit", "streaming_refusal"]

# The tier of streamed weights.
HOME = "nvme"

# Operators that compute on the CPU, and the kind of the streamed one that can stand in for them.
STREAMABLE = {f"{kind}.{place}": kind for kind in ("experts", "linear", "embedding") for place in ("cpu", "torch")}


def streamed_visit(visit: Visit, visits: Mapping[str, Visit]) -> Visit:
    """`visit` with a rule for the streamed operator of its kind, when it is kept with `home: nvme`; else itself.

    Args:
        visit: of one module.
        visits: those of all modules by path, for a home that is inherited.
    """
    kept = visit.rule is None or visit.rule.replace.operator == KEEP
    kind = "linear" if isinstance(visit.module, nn.Linear) else "embedding"
    if not kept or visit.placement.get("home") != HOME or not isinstance(visit.module, nn.Linear | nn.Embedding):
        return visit
    rule = visit.rule or _placing_rule(visit, visits)
    if rule is None:
        return visit
    own = rule.replace
    replace = Replace(f"{kind}.streamed", {}, own.placement, own.location, own.kwarg_lines)
    return dataclasses.replace(visit, rule=dataclasses.replace(rule, replace=replace, prefill=None))


def streaming_refusal(decision: Decision) -> str | None:
    """Why a module cannot be streamed instead of held; None when it can. "" where nobody would ask.

    A rule that names a dense operator alone wants dense weights (absorbed attention takes its matrix apart).
    """
    choice = decision.choice
    kind = STREAMABLE.get(choice.operator.operator_name)
    if kind is None or decision.prefill is not None or f"{kind}.cpu" not in decision.rule.replace.operators:
        return ""
    operator = operators.get(f"{kind}.streamed")
    return operator.supports(dataclasses.replace(choice.context, tier=HOME), operator.Config())


def _placing_rule(visit: Visit, visits: Mapping[str, Visit]) -> Rule | None:
    """The rule that gave the module its home: of the nearest ancestor that has one with it."""
    while visit.path:
        visit = visits[visit.parent]
        if visit.rule is not None and "home" in visit.rule.replace.placement:
            return visit.rule
    return None
