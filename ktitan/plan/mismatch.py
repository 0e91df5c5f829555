"""What is wrong with rules once they have met a model: no hit, fully shadowed, unknown sources, absent devices."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

from ktitan.errors import Fault
from ktitan.hardware import Hardware
from ktitan.plan.visit import Tally, Visit, placed
from ktitan.rules import Note, Rule, RuleSet
from ktitan.weights.source import WeightSource

__all__ = ["absent_devices", "idle_options", "idle_rules", "shared_modules", "source_names", "unknown_sources"]


def source_names(sources: Sequence[WeightSource]) -> set[str]:
    """What a rule may call a source: its path, or the last part of it."""
    return {source.path for source in sources} | {source.path.rstrip("/").rsplit("/", 1)[-1] for source in sources}


def idle_rules(rules: RuleSet, tallies: Sequence[Tally], visits: Sequence[Visit]) -> list[Fault]:
    """Rules that decided nothing: they hit no module, or another rule of their file had taken all that they hit.

    Optional rules may do so, and are remarked on (`idle_options`).
    """
    faults = []
    for rule, tally in zip(rules.rules, tallies, strict=True):
        if tally.decided or rule.optional:
            continue
        where = str(rule.location)
        if tally.taken and not _overridden(rule, tally):
            faults.append(Fault(_shadowed(tally), where, "move it before that rule, or remove it"))
        elif not tally.taken:
            faults.append(Fault("matches no module", where, f"{_near_miss(rule, visits)}or set optional: true"))
    return faults


def idle_options(rules: RuleSet, tallies: Sequence[Tally]) -> list[str]:
    """Remarks on optional rules that decided nothing: one on all without a match, one on each that is shadowed."""
    idle = [
        (rule, tally)
        for rule, tally in zip(rules.rules, tallies, strict=True)
        if rule.optional and not tally.decided and not (tally.taken and _overridden(rule, tally))
    ]
    unmatched = tuple(rule.location for rule, tally in idle if not tally.taken)
    notes = [str(Note("optional, and no module matches", unmatched))] if unmatched else []
    return [*notes, *(f"{rule.location}: {_shadowed(tally)}" for rule, tally in idle if tally.taken)]


def _shadowed(tally: Tally) -> str:
    path, by = tally.taken[0]
    return f"fully shadowed: all {len(tally.taken)} modules it matches are taken by {by} (first: {path})"


def _overridden(rule: Rule, tally: Tally) -> bool:
    """Whether rules of other files took all that an included rule matches: that is what including a file is for."""
    return rule.location.line > 0 and all(by.rpartition(":")[0] != rule.location.file for _, by in tally.taken)


def _near_miss(rule: Rule, visits: Sequence[Visit]) -> str:
    """What the rule may have meant: the nearest class of the model, or the path most like its name pattern."""
    if rule.match.cls is not None:
        short = rule.match.cls.rpartition(".")[2]
        classes = {type(visit.module).__name__ for visit in visits}
        close = difflib.get_close_matches(short, classes, n=1, cutoff=0.5)
        if close and close[0] != short:
            return f"the model has class {close[0]!r}; "
    if rule.match.name is not None:
        # Escapes and digit classes stripped, a pattern reads like the path it was written for.
        plain = re.sub(r"\\d\+?|\[[^]]*\]\+?", "0", rule.match.name.pattern).replace("\\", "").replace(".*", "")
        close = difflib.get_close_matches(plain, [visit.path for visit in visits], n=1, cutoff=0.5)
        if close:
            return f"the nearest path is {close[0]!r} (a name must match the whole path); "
    return "correct the match, "


def unknown_sources(rules: RuleSet, sources: Sequence[WeightSource]) -> list[Fault]:
    """Rules that name a source which was not given."""
    if not sources:
        return []
    names = source_names(sources)
    return [
        Fault(
            f"source {rule.source!r} is not one of the weights given",
            str(rule.location),
            f"given: {', '.join(sorted(names))}",
        )
        for rule in rules.rules
        if rule.source is not None and rule.source not in names
    ]


def shared_modules(aliases: Sequence[tuple[str, str]], decided: Mapping[str, str]) -> list[Fault]:
    """Modules under two paths that a rule would replace under the first only; `decided` gives the rule by path."""
    return [
        Fault(f"{first} and {second} are one module, which would be replaced under the first path only", decided[first],
              "exclude it with not:, or give the model a module of its own for each path")
        for second, first in aliases
        if first in decided
    ]  # fmt: skip


def absent_devices(visits: Sequence[Visit], hardware: Hardware) -> list[Fault]:
    """Devices that the machine lacks, each once, with the first module and rule that asks for it."""
    present = {"cpu", *(f"cuda:{gpu.index}" for gpu in hardware.gpus)}
    absent: dict[str, tuple[str, str]] = {}
    for visit in visits:
        placements = [visit.placement]
        if visit.rule is not None and visit.rule.prefill is not None:
            placements.append(placed(visit.placement, visit.rule.prefill.placement))
        for placement in placements:
            name = placement["device"]
            if name not in present and name not in absent:
                absent[name] = (visit.path or "the model", str(visit.rule.location) if visit.rule is not None else "")
    return [
        Fault(f"device {name} is not there (asked for {path})", where, f"present: {', '.join(sorted(present))}")
        for name, (path, where) in absent.items()
    ]
