"""Tiers, and how many bytes each may hold: weights, KV, workspace and I/O buffers together."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from ktitan.errors import BudgetError, Fault

__all__ = ["TIERS", "UNLIMITED", "Budget", "format_bytes", "parse_budget", "parse_bytes"]

TIERS = ("vram", "ram", "nvme")

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"\s*(\d{1,20}(?:\.\d+)?)\s*([kmgt]?)(i?)(b?)\s*", re.IGNORECASE)


def parse_bytes(text: str | int) -> int:
    """A size: "22GiB", "22G" and "22g" are binary, "22GB" decimal, a bare number bytes.

    Raises:
        BudgetError: not a size.
    """
    match = _SIZE.fullmatch(str(text))
    if match is None:
        raise BudgetError(f"{str(text)[:40]!r} is not a size", "budget", 'write for example "22GiB" or "800MB"')
    number, unit, binary, byte = match.groups()
    decimal = bool(unit and byte and not binary)
    factor = 1000 ** "kmgt".index(unit.lower()) * 1000 if decimal else _UNITS[unit.lower()]
    return int(float(number) * factor)


def format_bytes(size: float) -> str:
    """A size as people read it, in binary units: 1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} TiB"


@dataclass(frozen=True)
class Budget:
    """Bytes allowed per tier, over all devices of a tier; None: what the machine has."""

    vram_bytes: int | None = None
    ram_bytes: int | None = None
    nvme_bytes: int | None = None

    def limit(self, tier: str) -> int | None:
        """The bytes allowed in `tier`, or None."""
        limit: int | None = getattr(self, f"{tier}_bytes")
        return limit


UNLIMITED = Budget()


def parse_budget(value: str | Budget | None) -> Budget:
    """`"vram=22GiB,ram=96GiB"` -> Budget.

    Raises:
        BudgetError: an unknown tier, a tier twice, or something that is not a size.
    """
    if value is None or isinstance(value, Budget):
        return value or UNLIMITED
    if not isinstance(value, str):
        raise BudgetError(f"{value!r} is not a budget", "budget", 'write for example "vram=22GiB,ram=96GiB"')
    known = {field.name.removesuffix("_bytes") for field in fields(Budget)}
    limits: dict[str, int] = {}
    faults: list[Fault] = []
    for item in filter(None, (part.strip() for part in value.split(","))):
        tier, equals, size = item.partition("=")
        tier = tier.strip().lower()
        if not equals or tier not in known or f"{tier}_bytes" in limits:
            remedy = f'write "vram=22GiB,ram=96GiB" ({", ".join(TIERS)})'
            faults.append(Fault(f"{item!r} is not one tier and its size", "budget", remedy))
            continue
        try:
            limits[f"{tier}_bytes"] = parse_bytes(size)
        except BudgetError as error:
            faults += error.faults
    if faults:
        raise BudgetError.from_faults(faults, f"{len(faults)} faults in the budget")
    return Budget(**limits)
