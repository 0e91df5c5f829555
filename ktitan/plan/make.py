"""Rules x module tree x headers x budget -> plan. Pure: nothing is read but headers, nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import nn

from ktitan.errors import Fault, HardwareError, RuleError, WeightError
from ktitan.formats.plain import plain_name
from ktitan.hardware import Hardware
from ktitan.kv_formats import AS_COMPUTED
from ktitan.operator import MemoryNeed, StreamNeed
from ktitan.plan.adapter import add_adapter
from ktitan.plan.budget import add_budget
from ktitan.plan.choose import Chooser, prefill_replace
from ktitan.plan.devices import device_tier, whole_name
from ktitan.plan.hops import find_hops
from ktitan.plan.mismatch import (
    absent_devices,
    idle_options,
    idle_rules,
    shared_modules,
    source_names,
    unknown_sources,
)
from ktitan.plan.rows import Choice, Decision, Plan, PlanRow
from ktitan.plan.streamed import HOME, streamed_visit
from ktitan.plan.visit import Visit, placed, visit_modules
from ktitan.rules import KEEP, Location, RuleSet, packaged_folder
from ktitan.tiers import UNLIMITED, Budget
from ktitan.weights.adapter import Adapter
from ktitan.weights.binding import WeightMap, bind
from ktitan.weights.expression import Expression
from ktitan.weights.source import WeightSource

__all__ = ["make_plan", "model_dtype"]


@dataclass(frozen=True)
class _Inputs:
    """What `make_plan` was given, for its parts."""

    model: nn.Module
    rules: RuleSet
    hardware: Hardware
    dtype: torch.dtype
    weights: WeightMap | None
    tied: Mapping[str, str] = field(default_factory=dict)
    lenient: bool = False


def make_plan(
    model: nn.Module,
    rules: RuleSet,
    sources: Sequence[WeightSource] = (),
    *,
    hardware: Hardware,
    budget: Budget = UNLIMITED,
    device: str | torch.device = "cpu",
    seeds: Mapping[str, torch.device] | None = None,
    context_tokens: int | None = None,
    keep_original: bool = False,
    lenient: bool = False,
    adapter: Adapter | None = None,
    kv: str = AS_COMPUTED,
) -> Plan:
    """Decide what every module becomes.

    Args:
        model: the stock model, on meta or real; it is only looked at.
        rules: parsed rules, with the faults that parsing found.
        sources: opened weight sources; none for a plan from the config alone.
        hardware: the machine to plan for.
        budget: bytes allowed per tier; what it leaves open is what `hardware` has.
        device: where modules without a rule compute.
        seeds: devices for whole subtrees that a budget fill chose; rules win over them.
        context_tokens: tokens to keep room for in the KV cache.
        keep_original: the stock tensors of replaced modules stay in RAM, too.
        lenient: the user did not write these rules: what an operator refuses stays stock with a note, and a rule
            without a hit is no fault.
        adapter: LoRA adapter to apply to the result.
        kv: format of the KV cache, of `ktitan.kv_formats`.

    Returns:
        The plan; what is wrong stands in `plan.problems`, and `plan.check()` raises it.
    """
    default = {"device": whole_name(device)}
    visits, tallies, aliases = visit_modules(model, rules.rules, default, seeds or {})
    weights = bind(model, sources, _source_choice(visits, source_names(sources))) if sources else None
    tied = weights.tied if weights is not None else dict(getattr(model, "all_tied_weights_keys", None) or {})
    inputs = _Inputs(model, rules, hardware, model_dtype(model), weights, tied, lenient)
    plan = Plan(weights=weights, origin=rules.origin, budget=budget)
    plan.add_problem(RuleError, rules.faults)
    _decide(plan, inputs, visits)
    if adapter is not None:
        add_adapter(plan, model, adapter)
    decided = {decision.path: str(decision.rule.location) for decision in plan.decisions}
    plan.add_problem(RuleError, shared_modules(aliases, decided))
    plan.add_problem(RuleError, [] if lenient else idle_rules(rules, tallies, visits))
    plan.add_problem(RuleError, unknown_sources(rules, sources))
    plan.add_problem(WeightError, weights.faults if weights is not None else [])
    plan.add_problem(HardwareError, absent_devices(visits, hardware))
    plan.hops = find_hops(visits)
    plan.rows += [_hop_row(hop.path, model, hop.parent_device, hop.device, hop.returns) for hop in plan.hops]
    devices = {visit.path: torch.device(visit.placement["device"]) for visit in visits}
    if keep_original and not any(source.kind == "live" for source in sources):
        plan.parts["ram"] = {"originals": sum(_stock_bytes(d.choice.context.module, d) for d in plan.decisions)}
    add_budget(plan, model, inputs.dtype, hardware, devices, context_tokens, kv)
    plan.rule_notes = tuple(map(str, rules.notes))
    plan.notes += [*plan.rule_notes, *([] if lenient else idle_options(rules, tallies))]
    if weights is None:
        plan.notes.append("no weights were opened: sizes are those of the config's dtype")
    return plan


def model_dtype(model: nn.Module) -> torch.dtype:
    """The dtype that the model computes in: its own idea of it, else that of its first floating parameter."""
    own = getattr(getattr(model, "config", None), "dtype", None)
    first = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    return first or (own if isinstance(own, torch.dtype) else torch.float32)


def _decide(plan: Plan, inputs: _Inputs, visits: Sequence[Visit]) -> None:
    """Fill decisions, devices and rows."""
    chooser = Chooser(inputs.hardware, inputs.dtype, _stored_by_module(inputs.weights, visits), inputs.lenient)
    stock_again: set[str] = set()  # what an operator refused and may stay, with all that it would have taken
    for rule in inputs.rules.rules:
        chooser.check_names(rule)
    by_path = {visit.path: visit for visit in visits}
    for visit in (streamed_visit(visit, by_path) for visit in visits):
        if visit.covered_by and visit.covered_by not in stock_again:
            continue
        replaced = visit.rule is not None and visit.rule.replace.operator != "keep"
        decision = _decision(chooser, visit) if replaced else None
        if replaced and decision is None and (inputs.lenient or visit.rule.replace.may_keep):  # type: ignore[union-attr]
            stock_again.add(visit.path)
            replaced = False
        if decision is not None:
            plan.decisions.append(decision)
            plan.rows.append(_replaced_row(inputs, visit, decision))
            plan.streams += _streams(decision)
        elif not replaced and _own_tensors(visit.module):
            _check_kept_home(plan, visit)
            plan.devices[visit.path] = torch.device(visit.placement["device"])
            plan.rows.append(_kept_row(inputs, visit))
        elif not replaced and visit.module._non_persistent_buffers_set:
            plan.devices[visit.path] = torch.device(visit.placement["device"])  # rotary tables and the like
    _count_tied_once(plan, inputs)
    plan.add_problem(RuleError, chooser.faults())
    plan.notes += [*chooser.refusals(), *_unstreamed(plan, by_path)]


def _count_tied_once(plan: Plan, inputs: _Inputs) -> None:
    """Tied modules share one tensor where both hold it in one format at one place; elsewhere each has its own."""
    index = {row.path: number for number, row in enumerate(plan.rows)}
    for target, source in inputs.tied.items():
        here, there = target.rpartition(".")[0], source.rpartition(".")[0]
        if here not in index or there not in index:
            continue
        row, partner = plan.rows[index[here]], plan.rows[index[there]]
        if (row.format, row.device, row.tier) == (partner.format, partner.device, partner.tier):
            plan.rows[index[here]] = replace(
                row, bytes=0, notes="; ".join(filter(None, (f"tied to {there}", row.notes)))
            )


def _decision(chooser: Chooser, visit: Visit) -> Decision | None:
    rule = visit.rule
    if rule is None:
        return None
    choice = chooser.choose(rule.replace, visit.path, visit.module, visit.placement)
    prefill: Choice | None = None
    if rule.prefill is not None:
        placement = placed(visit.placement, rule.prefill.placement)
        prefill = chooser.choose(prefill_replace(rule), visit.path, visit.module, placement)
        if prefill is None or (choice is not None and not chooser.may_alternate(rule, choice, prefill)):
            return None
    return Decision(visit.path, rule, choice, prefill) if choice is not None else None


def _stock_bytes(module: nn.Module, decision: Decision) -> int:
    """Bytes of the stock tensors that a replaced module has itself, or with its children when it takes them over."""
    recurse = not decision.choice.operator.keeps_children
    return sum(t.numel() * t.element_size() for t in [*module.parameters(recurse), *module.buffers(recurse)])


def _stored_by_module(weights: WeightMap | None, visits: Sequence[Visit]) -> dict[str, dict[str, Expression]]:
    """How each module's tensors are stored, by the module's path and the tensor's relative name."""
    if weights is None:
        return {}
    result: dict[str, dict[str, Expression]] = {visit.path: {} for visit in visits}
    for name in [*weights.bindings, *weights.tied]:
        expression = weights.bindings[weights.tied.get(name, name)]
        pieces = name.split(".")
        for cut in range(len(pieces)):
            owner = ".".join(pieces[:cut])
            if owner in result:
                result[owner][".".join(pieces[cut:])] = expression
    return result


def _own_tensors(module: nn.Module) -> list[torch.Tensor]:
    """Parameters and persistent buffers directly on the module."""
    temporary = module._non_persistent_buffers_set
    buffers = [b for name, b in module._buffers.items() if b is not None and name not in temporary]
    return [*(p for p in module._parameters.values() if p is not None), *buffers]


def _kept_row(inputs: _Inputs, visit: Visit) -> PlanRow:
    tensors = _own_tensors(visit.module)
    dtypes = sorted({plain_name(tensor.dtype) for tensor in tensors})
    need = MemoryNeed(sum(t.numel() * t.element_size() for t in tensors), "+".join(dtypes), "stock")
    return _row(inputs, visit, "keep", need, torch.device(visit.placement["device"]), recurse=False)


def _replaced_row(inputs: _Inputs, visit: Visit, decision: Decision) -> PlanRow:
    choice, prefill = decision.choice, decision.prefill
    need = choice.operator.memory(choice.context, choice.config)
    row = _row(
        inputs, visit, choice.operator.operator_name, need, choice.context.device, not choice.operator.keeps_children
    )
    row = replace(row, tier=choice.context.tier)
    if row.notes:  # the weights are not held as they are stored: say why an operator that would is not it
        row = replace(row, notes="; ".join((row.notes, *choice.refused)))
    if prefill is None:
        return row
    extra = prefill.operator.memory(prefill.context, prefill.config)
    note = f"prefill: {prefill.operator.operator_name} on {prefill.context.device}"
    row = replace(row, notes="; ".join(filter(None, (row.notes, note))))
    same_place = (prefill.context.device, prefill.context.tier) == (choice.context.device, choice.context.tier)
    if same_place and extra.format == need.format:
        return row
    if need.stream is not None:
        return replace(row, resident_bytes=row.resident_bytes + extra.resident_bytes)
    return replace(row, bytes=row.bytes + extra.resident_bytes)


def _streams(decision: Decision) -> list[StreamNeed]:
    """What the operators of a module stream; those of two phases share one entry in the store."""
    for choice in (decision.choice, decision.prefill):
        stream = None if choice is None else choice.operator.memory(choice.context, choice.config).stream
        if stream is not None:
            return [stream]
    return []


def _unstreamed(plan: Plan, visits: Mapping[str, Visit]) -> list[str]:
    """A remark on kept modules that inherit a home on the drive and have nothing that could be streamed."""
    left = [row.path for row in plan.rows if row.operator == KEEP and visits[row.path].placement.get("home") == HOME]
    if not left:
        return []
    more = f" and {len(left) - 1} more" if len(left) > 1 else ""
    return [f"home: {HOME} leaves {left[0]}{more} where they compute: only linear layers and embeddings are streamed"]


def _row(
    inputs: _Inputs, visit: Visit, operator: str, need: MemoryNeed, device: torch.device, recurse: bool
) -> PlanRow:
    """One row; `recurse` says whether the module's children belong to it."""
    stored = _stored_formats(inputs.weights, visit, recurse)
    notes = [f"stored {stored}"] if stored and stored != need.format else []
    rule = _short(visit.rule.location) if visit.rule is not None else ""
    kind = type(visit.module).__name__
    stream = need.stream
    return PlanRow(
        visit.path,
        kind,
        rule,
        operator,
        need.format,
        device_tier(device),
        str(device),
        need.resident_bytes if stream is None else stream.stored_bytes,
        need.kernel,
        "; ".join(notes),
        0 if stream is None else need.resident_bytes,
    )


def _short(location: Location) -> str:
    """`file:line`, packaged files by their name in the package."""
    path = Path(location.file)
    packaged = path.is_relative_to(packaged_folder())
    return f"{path.relative_to(packaged_folder())}:{location.line}" if packaged else str(location)


def _stored_formats(weights: WeightMap | None, visit: Visit, recurse: bool) -> str:
    if weights is None:
        return ""
    found: dict[str, None] = {}
    own = [name for name, _ in visit.module.named_parameters(recurse=recurse)]
    for name in own:
        full = f"{visit.path}.{name}"
        expression = weights.bindings.get(weights.tied.get(full, full))
        found.update(dict.fromkeys(expression.formats if expression is not None else ()))
    return "+".join(sorted(found))


def _hop_row(path: str, model: nn.Module, parent: torch.device, here: torch.device, returns: bool) -> PlanRow:
    kind = type(model.get_submodule(path)).__name__
    note = f"inputs {parent} to {here}" + (", outputs back" if returns else "; the next layer is there, too")
    path = path or "(model)"
    return PlanRow(path, kind, "", "hop", "-", device_tier(here), str(here), 0, "copy", note)


def _check_kept_home(plan: Plan, visit: Visit) -> None:
    """A stock module computes from its device's own tier; another home needs a streamed operator."""
    home, device = visit.placement.get("home"), torch.device(visit.placement["device"])
    if home is None or home == device_tier(device) or visit.rule is None:
        return
    where = str(visit.rule.location)
    message = f"a kept {type(visit.module).__name__} on {device} cannot keep its weights in {home} (at {visit.path})"
    remedy = f"only linear layers, embeddings and routed experts are streamed; set home: {device_tier(device)}"
    plan.add_problem(RuleError, [Fault(message, where, remedy)])


def _source_choice(visits: Sequence[Visit], known: set[str]) -> Callable[[str], str | None]:
    """For a tensor name, the source that the rule of its module demands; a name that is no source has its own fault."""
    demands = ((visit.path, visit.rule.source) for visit in visits if visit.rule is not None)
    wanted = {path: source for path, source in demands if source in known}

    def choose(name: str) -> str | None:
        path = name
        while path and wanted:
            path = path.rpartition(".")[0]
            if path in wanted:
                return wanted[path]
        return None

    return choose
