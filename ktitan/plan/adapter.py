"""Where a LoRA adapter meets the plan: each pair needs a linear module that is called as one."""

from __future__ import annotations

import difflib
import re
from dataclasses import replace

from torch import nn
from transformers.pytorch_utils import Conv1D

from ktitan.errors import Fault, UnsupportedError, WeightError
from ktitan.plan.rows import Decision, Plan
from ktitan.weights.adapter import Adapter, LowRankPair

__all__ = ["add_adapter"]


def add_adapter(plan: Plan, model: nn.Module, adapter: Adapter) -> None:
    """Take `adapter` into the plan: its bytes in the rows of the modules that it adapts, its faults among the problems.

    Args:
        plan: with its decisions and rows.
        model: the stock model.
        adapter: opened.
    """
    plan.adapter = adapter
    plan.add_problem(UnsupportedError, adapter.unsupported)
    decisions = {decision.path: decision for decision in plan.decisions}
    faults = list(adapter.broken)
    rows = {row.path: number for number, row in enumerate(plan.rows) if row.operator != "hop"}
    for path, pair in adapter.pairs.items():
        fault = _fault(pair, model, decisions)
        if fault is not None:
            faults.append(fault)
        elif path in rows:
            row = plan.rows[rows[path]]
            note = "; ".join(filter(None, (row.notes, f"LoRA of rank {pair.rank}")))
            held = "bytes" if row.tier != "nvme" else "resident_bytes"
            plan.rows[rows[path]] = replace(row, notes=note, **{held: getattr(row, held) + pair.held_bytes})
    plan.add_problem(WeightError, _folded(faults))
    made_for = f", made for {adapter.base}" if adapter.base else ""
    plan.notes.append(f"LoRA adapter {adapter.path}: {len(adapter.pairs)} modules{made_for}")


def _fault(pair: LowRankPair, model: nn.Module, decisions: dict[str, Decision]) -> Fault | None:
    """Why a pair cannot be applied."""
    try:
        module = model.get_submodule(pair.path)
    except AttributeError:
        return Fault("the adapter adapts this module, which the model lacks", pair.path, _nearest(pair.path, model))
    owner = _owner(pair.path, decisions)
    if owner is not None:
        name = owner.choice.operator.operator_name
        message = f"the adapter adapts this module, but {name} computes {owner.path} as a whole"
        return Fault(message, pair.path, f'write a rule that keeps {owner.path} (class: "keep"), or merge the adapter')
    sizes = _sizes(module)
    if sizes is None:
        message = f"the adapter adapts this module, but {type(module).__name__} is no linear module"
        return Fault(message, pair.path, "merge the adapter into the model with peft's merge_and_unload")
    found = (pair.a.shape[1], pair.b.shape[0])
    if found != sizes:
        message = (
            f"the adapter is for {found[0]} inputs and {found[1]} outputs, the module has {sizes[0]} and {sizes[1]}"
        )
        return Fault(message, pair.path, "use the adapter with the model that it was made for")
    return None


def _owner(path: str, decisions: dict[str, Decision]) -> Decision | None:
    """The replaced module above `path` that takes its children over."""
    while path:
        path = path.rpartition(".")[0]
        decision = decisions.get(path)
        if decision is not None and not decision.choice.operator.keeps_children:
            return decision
    return None


def _sizes(module: nn.Module) -> tuple[int, int] | None:
    """Inputs and outputs of a dense linear module of torch or transformers."""
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    return (module.nx, module.nf) if isinstance(module, Conv1D) else None


def _nearest(path: str, model: nn.Module) -> str:
    names = [name for name, module in model.named_modules() if _sizes(module) is not None]
    close = difflib.get_close_matches(path, names, n=1, cutoff=0.5)
    hint = f" (the nearest is {close[0]})" if close else ""
    return f"use the adapter with the model that it was made for{hint}"


def _folded(faults: list[Fault]) -> list[Fault]:
    """Faults that layers share, once, with the number of modules."""
    groups: dict[tuple[str, str], list[Fault]] = {}
    for fault in faults:
        groups.setdefault((re.sub(r"\d+", "*", fault.where), re.sub(r"\d+", "*", fault.message)), []).append(fault)
    return [
        replace(same[0], message=f"{same[0].message} (and {len(same) - 1} more like it)") if len(same) > 1 else same[0]
        for same in groups.values()
    ]
