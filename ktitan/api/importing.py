"""Rule files of KTransformers to files of version 1."""

from __future__ import annotations

from pathlib import Path

from ktitan.errors import Fault, RuleError
from ktitan.rules import parse_rules, to_yaml

__all__ = ["import_rules"]


def import_rules(path: str | Path, *, keep_prefill: bool = False) -> tuple[str, tuple[str, ...]]:
    """The version 1 text of a KTransformers rule file, and what its rules mean here in another way.

    Args:
        path: the file.
        keep_prefill: take over operators for prompts even where KTransformers would not use them.

    Raises:
        RuleError: the file is missing or faulty, or no file of KTransformers.
    """
    rules = parse_rules(path, keep_prefill=keep_prefill)
    faults = rules.faults
    if not faults and not rules.notes:
        message = "this is no rule file of KTransformers, which has a list at the top"
        faults = (Fault(message, str(path), "use it as it is: it is a rule file of ktitan"),)
    if faults:
        raise RuleError.from_faults(faults, f"{len(faults)} faults; nothing was written")
    return to_yaml(rules), tuple(map(str, rules.notes))
