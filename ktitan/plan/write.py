"""A plan as a rule file that one can edit: explicit rules that make the same plan again."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import yaml

from ktitan.plan.rows import Choice, Plan
from ktitan.rules import LayerSet

__all__ = ["to_rules"]

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass(frozen=True)
class _Entry:
    """One module's outcome, without its layer number."""

    template: str
    replace: str  # the `replace:` mapping as YAML flow text, so that equal ones group


def to_rules(plan: Plan) -> str:
    """Version-1 YAML that reproduces `plan`: modules that differ only in their layer number share a rule.

    A module that no rule replaced is written only where it computes elsewhere than the model does.
    """
    groups: dict[_Entry, list[int | None]] = {}
    for path, replace in _outcomes(plan):
        number = _NUMBER.search(path)
        template = path if number is None else f"{path[: number.start()]}#{path[number.end() :]}"
        key = _Entry(template, yaml.safe_dump(replace, default_flow_style=True, width=10_000).strip())
        groups.setdefault(key, []).append(int(number.group()) if number is not None else None)
    lines = [f"# Written from a plan; rules: {plan.origin}", "version: 1", "rules:"]
    for entry, numbers in groups.items():
        lines += _rule(entry, [number for number in numbers if number is not None])
    return "\n".join(lines) + "\n"


def _outcomes(plan: Plan) -> Iterable[tuple[str, dict[str, Any]]]:
    """(path, replace mapping) of every module that needs a rule, parents before children."""
    for decision in plan.decisions:
        replace = _replacement(decision.choice)
        if decision.prefill is not None:
            replace["prefill"] = _replacement(decision.prefill)
        if decision.rule.source is not None:
            replace["source"] = decision.rule.source
        yield decision.path, replace
    replaced = {decision.path for decision in plan.decisions}
    kept = {**plan.devices, **{hop.path: hop.device for hop in plan.hops if hop.path}}
    for path, device in kept.items():
        if path not in replaced:
            yield path, {"class": "keep", "kwargs": {"device": str(device)}}


def _replacement(choice: Choice) -> dict[str, Any]:
    kwargs: dict[str, Any] = {"device": str(choice.context.device), "home": choice.context.tier}
    defaults = {field.name: field.default for field in dataclasses.fields(choice.config)}
    given = dataclasses.asdict(choice.config)
    kwargs.update({name: value for name, value in given.items() if value != defaults.get(name)})
    return {"class": choice.operator.operator_name, "kwargs": kwargs}


def _rule(entry: _Entry, layers: list[int]) -> list[str]:
    name = re.escape(entry.template).replace(r"\#", r"\d+").replace("#", r"\d+")
    condition = f", layers: '{LayerSet.of(layers)}'" if layers else ""
    return [f"  - match: {{name: '{name}'{condition}}}", f"    replace: {entry.replace}"]
