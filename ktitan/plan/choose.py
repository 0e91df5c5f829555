"""Turns one matched rule into an operator with a validated config at a device and tier, or into faults."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from ktitan.errors import Fault
from ktitan.hardware import Hardware
from ktitan.operator import Operator, OperatorContext
from ktitan.plan.devices import device_tier
from ktitan.plan.rows import Choice
from ktitan.registry import nearest, operators
from ktitan.rules import KEEP, PLACEMENT_KEYS, Replace, Rule
from ktitan.weights.expression import Expression
from ktitan.weights.rows import module_layouts, module_rows

__all__ = ["Chooser", "prefill_replace"]

# The second part of the names of operators whose weights live in a tier.
_RESIDENT = {"ram": "cpu"}


class Chooser:
    """Chooses operators for one plan; configs are validated once a rule, not once a module.

    Faults that are the same for many modules are kept once, with the count.
    """

    def __init__(
        self,
        hardware: Hardware,
        dtype: torch.dtype,
        stored: Mapping[str, Mapping[str, Expression]],
        lenient: bool = False,
    ) -> None:
        self.hardware = hardware
        self.dtype = dtype
        self.stored = stored
        self.lenient = lenient
        self._refused: dict[str, list[str]] = {}
        self._configs: dict[tuple[str, str, str], Any] = {}
        self._faults: dict[tuple[str, str, str], list[str]] = {}

    def choose(self, replace: Replace, path: str, module: nn.Module, placement: Mapping[str, str]) -> Choice | None:
        """The choice for `module`: the first operator of the rule that supports it. None after noting why not."""
        base = self._context(path, module, placement)
        kind = type(module).__name__
        reasons: dict[str, str] = {}  # by operator
        for name in replace.candidates:
            operator = self._operator(name, replace)
            config = None if operator is None else self._config(operator, replace)
            if operator is None or config is None:
                return None
            context = base
            if operator.streams and "home" not in placement:
                context = dataclasses.replace(base, tier=operator.homes[0])
            if not self._home_is_legal(operator, context, replace, placement):
                return None
            reason = operator.supports(context, config)
            if reason is None:
                refused = (f"{one} cannot replace {kind}: {why}" for one, why in reasons.items())
                return Choice(operator, config, context, tuple(refused))
            reasons[name] = reason
        message = _refusal(kind, reasons)
        if self.lenient or replace.may_keep:
            self._refused.setdefault(message, []).append(path)
        else:
            self._note(str(replace.location), message, 'narrow the match, or use "keep"', path)
        return None

    def _context(self, path: str, module: nn.Module, placement: Mapping[str, str]) -> OperatorContext:
        device = torch.device(placement["device"])
        tier = placement.get("home", device_tier(device))
        stored = self.stored.get(path, {})
        formats = {name: expression.formats for name, expression in stored.items()}
        layouts, rows = module_layouts(stored), module_rows(stored)
        return OperatorContext(path, module, device, tier, self.dtype, self.hardware, formats, layouts, rows)

    def check_names(self, rule: Rule) -> None:
        """Note a rule's unknown operators and kwargs, whether or not it hits a module."""
        parts = [rule.replace] if rule.prefill is None else [rule.replace, prefill_replace(rule)]
        if rule.prefill is not None and any(part.may_keep for part in parts):
            self._note(
                str(rule.prefill.location),
                "a stock module that is kept has no phases",
                "name an operator for both, e.g. the torch one of its kind",
                "",
            )
        for replace in parts:
            named = (self._operator(name, replace) for name in replace.candidates)
            found = [operator for operator in named if operator]
            self._check_kwargs(found, replace)
            if len({operator.keeps_children for operator in found}) > 1:
                message = (
                    f"{' and '.join(replace.operators)} cannot be alternatives: only one keeps the module's children"
                )
                self._note(str(replace.location), message, "name operators of one kind", "")

    def may_alternate(self, rule: Rule, decode: Choice, prefill: Choice) -> bool:
        """Whether two operators can stand at one place; notes why not."""
        keep = (decode.operator.keeps_children, prefill.operator.keeps_children)
        if keep == (False, False) or (keep == (True, True) and decode.context.device == prefill.context.device):
            return True
        names = f"{decode.operator.operator_name} and {prefill.operator.operator_name}"
        message = f"{names} cannot alternate: one set of children below them cannot serve both"
        where = str(rule.prefill.location if rule.prefill is not None else rule.location)
        self._note(where, message, "give phases to the modules below, or one device to both", decode.context.path)
        return False

    def refusals(self) -> list[str]:
        """What stays stock under lenient rules, each reason once with the number of modules."""
        return [
            f"kept stock, {len(paths)} x: {message} (first: {paths[0]})" for message, paths in self._refused.items()
        ]

    def faults(self) -> list[Fault]:
        """All that was noted, each once, with the first module and the number of the others."""
        result = []
        for (where, message, remedy), paths in self._faults.items():
            paths = [path for path in paths if path]
            place = f" (at {paths[0]}" + (f" and {len(paths) - 1} more)" if len(paths) > 1 else ")") if paths else ""
            result.append(Fault(message + place, where, remedy))
        return result

    def _operator(self, name: str, replace: Replace) -> type[Operator] | None:
        operator = operators.find(name)
        if operator is None and name != KEEP:
            remedy = nearest(name, [*operators.names(), KEEP])
            self._note(str(replace.location), f"no operator named {name!r}", remedy, "")
        return operator

    def _check_kwargs(self, found: list[type[Operator]], replace: Replace) -> None:
        """Note kwargs that no operator of the rule has, and values that one of them refuses."""
        known = sorted({field.name for operator in found for field in dataclasses.fields(operator.Config)})
        for name in replace.kwargs if len(found) == len(replace.candidates) else ():
            if name not in known:
                message = f"{' or '.join(replace.operators)} has no kwarg {name!r}"
                self._note(str(replace.kwarg_location(name)), message, nearest(name, [*known, *PLACEMENT_KEYS]), "")
        for operator in found:
            self._config(operator, replace)

    def _config(self, operator: type[Operator], replace: Replace) -> Any | None:
        key = (operator.operator_name, str(replace.location), repr(replace.kwargs))
        if key not in self._configs:
            self._configs[key] = self._validated(operator, replace)
        return self._configs[key]

    def _validated(self, operator: type[Operator], replace: Replace) -> Any | None:
        """The config from the kwargs that the operator has; an alternative in the same rule may have others."""
        own = {field.name for field in dataclasses.fields(operator.Config)}
        given = {name: value for name, value in replace.kwargs.items() if name in own}
        try:
            return TypeAdapter(operator.Config).validate_python(given)
        except ValidationError as error:
            for item in error.errors():
                name = str(item["loc"][0]) if item["loc"] else ""
                found = f"found {item['input']!r}" if name in replace.kwargs else "it is not given"
                message = f"{operator.operator_name}: kwarg {name!r}: {item['msg']} ({found})"
                self._note(str(replace.kwarg_location(name)), message, _expected(operator, name), "")
            return None

    def _home_is_legal(
        self, operator: type[Operator], context: OperatorContext, replace: Replace, placement: Mapping[str, str]
    ) -> bool:
        own = device_tier(context.device)
        hint = placement.get("tier", context.tier)
        if hint != context.tier:
            message = f"tier: {hint} differs from where {operator.operator_name} keeps its weights, {context.tier}"
            where = str(replace.kwarg_location("tier"))
            self._note(where, message, "remove it: nothing moves between tiers in this version", context.path)
            return False
        if context.tier in operator.homes or (context.tier == own and not operator.streams):
            return True
        where = str(replace.kwarg_location("home"))
        kind = operator.operator_name.partition(".")[0]
        if operator.streams and context.tier == own:
            message = f"{operator.operator_name} streams its weights from files, so they cannot live in {own}"
            self._note(where, message, f"leave home out, or use {kind}.{_RESIDENT.get(own, 'torch')}", context.path)
            return False
        able = [name for name in operators.names() if context.tier in operators.get(name).homes]
        able = [name for name in able if name.startswith(f"{kind}.")]
        remedy = f"use one of {', '.join(able)}" if able else f"no {kind} operator of this version can; set home: {own}"
        message = f"{operator.operator_name} on {context.device} cannot keep its weights in {context.tier}"
        self._note(where, message, remedy, context.path)
        return False

    def _note(self, where: str, message: str, remedy: str, path: str) -> None:
        self._faults.setdefault((where, message, remedy), []).append(path)


def _refusal(kind: str, reasons: Mapping[str, str]) -> str:
    """Why no operator replaces a module of class `kind`; those with the same reason are named together."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        by_reason.setdefault(reason, []).append(name)
    return "; ".join(f"{' and '.join(names)} cannot replace {kind}: {reason}" for reason, names in by_reason.items())


def _expected(operator: type[Operator], name: str) -> str:
    """The declared type and default of one kwarg."""
    field = next((one for one in dataclasses.fields(operator.Config) if one.name == name), None)
    if field is None:
        return f"kwargs: {', '.join(one.name for one in dataclasses.fields(operator.Config))}"
    default = "" if field.default is dataclasses.MISSING else f", default {field.default!r}"
    return f"{name}: {field.type}{default}"


def prefill_replace(rule: Rule) -> Replace:
    """A rule's prefill part with what it leaves out taken from the main part; kwargs only for the same operator."""
    main, own = rule.replace, rule.prefill
    if own is None or own.operators != main.operators:
        return own or main
    lines = {**main.kwarg_lines, **own.kwarg_lines}
    return Replace(own.operator, {**main.kwargs, **own.kwargs}, own.placement, own.location, lines, own.others)
