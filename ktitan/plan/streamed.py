"""Kept modules whose weights a rule leaves on the drive: a plain Linear or Embedding is streamed in its place."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch import nn

from ktitan.plan.visit import Visit
from ktitan.rules import KEEP, Replace, Rule

__all__ = ["HOME", "streamed_visit"]

# The tier of streamed weights.
HOME = "nvme"


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


def _placing_rule(visit: Visit, visits: Mapping[str, Visit]) -> Rule | None:
    """The rule that gave the module its home: of the nearest ancestor that has one with it."""
    while visit.path:
        visit = visits[visit.parent]
        if visit.rule is not None and "home" in visit.rule.replace.placement:
            return visit.rule
    return None
