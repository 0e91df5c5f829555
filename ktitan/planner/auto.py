"""`rules: auto`: the family's rule file, and devices by budget until the cost-based planner exists."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path

import torch
from torch import nn

from ktitan.errors import PlanError
from ktitan.hardware import Hardware
from ktitan.planner.fill import fill
from ktitan.rules import RuleSet, parse_rules
from ktitan.tiers import Budget

__all__ = ["auto_rules", "packaged_rules"]

GENERIC = "auto"


def packaged_rules(name: str) -> Path | None:
    """The rule file that comes with ktitan under `name` ("llama" or "llama.yaml"), or None."""
    folder = Path(str(resources.files("ktitan.injection_rules")))
    stem = name.removesuffix(".yaml")
    path = folder / f"{stem}.yaml"
    return path if stem.isidentifier() and os.path.isfile(path) else None


def auto_rules(
    model: nn.Module,
    budget: Budget,
    hardware: Hardware,
    device: str,
    context_tokens: int | None = None,
    fills: bool = True,
) -> tuple[RuleSet, dict[str, torch.device]]:
    """The rules for `model`, and the devices of the subtrees that do not fit on `device` (none unless it `fills`).

    Returns:
        The parsed rules, whose origin says how they were chosen, and the seeds for `make_plan`.
    """
    family = getattr(getattr(model, "config", None), "model_type", "")
    path = packaged_rules(family) if family else None
    generic = packaged_rules(GENERIC)
    chosen = path or generic
    if chosen is None:
        raise PlanError("the packaged rule files are missing", "ktitan.injection_rules", "install ktitan again")
    parsed = parse_rules(chosen)
    seeds = fill(model, budget, hardware, torch.device(device), context_tokens) if fills else {}
    how = f"family {family}" if path is not None else f"generic; no file for {family or type(model).__name__}"
    moved = f", {len(seeds)} part{'s' * (len(seeds) > 1)} moved by budget" if seeds else ""
    return RuleSet(parsed.rules, f"auto: {Path(parsed.origin).name} ({how}{moved})", parsed.faults), seeds
