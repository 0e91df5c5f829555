"""Streaming without being asked: a model that does not fit in RAM leaves on the drive what is cheap to read again."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

from ktitan.errors import BudgetError, Fault
from ktitan.plan import Decision, Plan
from ktitan.plan.streamed import STREAMABLE, streaming_refusal
from ktitan.rules import LayerSet, Location, Match, Replace, Rule, RuleSet
from ktitan.tiers import format_bytes

__all__ = ["stream_to_fit"]

# In this order: a token needs a few of the experts, all of the linear layers; rows of tables are read one by one.
STEPS = {"experts": "routed experts", "linear": "linear layers", "embedding": "embeddings"}

_WHERE = Location("streamed to fit")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def stream_to_fit(plan: Plan, rules: RuleSet, again: Callable[[RuleSet], Plan]) -> Plan:
    """`plan`, or where RAM is all that it lacks, one that streams what computes on the CPU: first routed experts, then
    linear layers, then embeddings, as few of these kinds as fit. A kind that would need more for its cache than it
    takes stays where it is.

    Args:
        plan: by `rules`.
        rules: which nobody wrote for this machine.
        again: makes the plan of other rules.

    Returns:
        A plan whose notes say what is streamed and why. Where even that does not fit it has the fault of its own.
    """
    if set(plan.problems) != {BudgetError} or not _exceeds(plan):
        return plan
    chosen: list[Decision] = []
    found = plan
    for kind in STEPS:
        wider = [*chosen, *_candidates(plan, kind)]
        if len(wider) == len(chosen):
            continue
        made = again(dataclasses.replace(rules, rules=(*_rules_for(wider), *rules.rules)))
        if _least(made) < _least(found):
            found, chosen = made, wider
        if not _exceeds(found):
            break
    if chosen:
        found.origin += f", {len(chosen)} modules streamed"
        found.notes.insert(0, _note(plan, found, chosen))
    elif reasons := [reason for one in plan.decisions if (reason := streaming_refusal(one))]:
        note = f"nothing can be streamed to make it fit: {reasons[0]}"
        plan.notes.insert(0, note)
        # Whoever sees the error alone would else take the budget for the only way out.
        plan.problems[BudgetError] = [
            dataclasses.replace(fault, message=f"{fault.message}; {note}" if _is_of_ram(fault) else fault.message)
            for fault in plan.problems[BudgetError]
        ]
    return found


def _exceeds(plan: Plan) -> bool:
    return "ram" in plan.limits and plan.totals["ram"] > plan.limits["ram"]


def _is_of_ram(fault: Fault) -> bool:
    return fault.message.startswith("ram:")


def _least(plan: Plan) -> int:
    """RAM that a plan cannot do without."""
    return plan.totals["ram"] - (0 if plan.cache is None else plan.cache_bytes - plan.cache.least_bytes)


def _candidates(plan: Plan, kind: str) -> list[Decision]:
    """Modules of a kind that can be streamed; a head that shares the table of the embedding goes with it."""
    kinds = ("linear", "embedding") if kind == "embedding" else (kind,)
    sizes = {row.path: row.bytes for row in plan.rows}
    found = []
    for decision in plan.decisions:
        own = STREAMABLE.get(decision.choice.operator.operator_name, "")
        shares = own == "linear" and not sizes[decision.path]
        if own in kinds and (own == kind) != shares and streaming_refusal(decision) is None:
            found.append(decision)
    return found


def _rules_for(chosen: Sequence[Decision]) -> list[Rule]:
    """Rules that stream these modules; layers with the same rule share one."""
    groups: dict[tuple[int, str], list[Decision]] = {}
    for decision in chosen:
        groups.setdefault((id(decision.rule), _template(decision.path)), []).append(decision)
    return [_streaming_rule(same, template) for (_, template), same in groups.items()]


def _template(path: str) -> str:
    """The regex of a path whose layer number is any."""
    number = _NUMBER.search(path)
    if number is None:
        return re.escape(path)
    return rf"{re.escape(path[: number.start()])}\d+{re.escape(path[number.end() :])}"


def _streaming_rule(same: Sequence[Decision], template: str) -> Rule:
    choice, rule = same[0].choice, same[0].rule
    layers = [int(number[0]) for one in same if (number := _NUMBER.search(one.path))]
    match = Match(re.compile(template), None, LayerSet.of(layers) if layers else None)
    kwargs = {name: value for name, value in rule.replace.kwargs.items() if name == "activations"}
    kind = STREAMABLE[choice.operator.operator_name]
    replace = Replace(f"{kind}.streamed", kwargs, {"device": str(choice.context.device)}, _WHERE)
    return dataclasses.replace(rule, match=match, replace=replace, location=_WHERE)


def _note(before: Plan, after: Plan, chosen: Sequence[Decision]) -> str:
    kinds = dict.fromkeys(STREAMABLE[one.choice.operator.operator_name] for one in chosen)
    names = " and ".join(filter(None, (", ".join(STEPS[kind] for kind in [*kinds][:-1]), STEPS[[*kinds][-1]])))
    size = format_bytes(after.parts.get("nvme", {}).get("weights", 0))
    total, allowed = format_bytes(before.totals["ram"]), format_bytes(before.limits["ram"])
    why = f"since the model would need {total} of ram and {allowed} are allowed"
    cache = format_bytes(after.cache_bytes)
    return f"{names} are streamed ({len(chosen)} modules, {size}), {why}; their cache takes {cache}"
