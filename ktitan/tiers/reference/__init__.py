"""The store's decisions in Python: what csrc/tiers does, for tests against it and for replaying traces."""

from __future__ import annotations

from ktitan.tiers.reference.cycle import Cycle, CycleAnswer
from ktitan.tiers.reference.residency import Answer, Residency
from ktitan.tiers.reference.store import Counters, ReferenceStore
from ktitan.tiers.reference.vram import Vram, VramAnswer, VramCounters

__all__ = [
    "Answer",
    "Counters",
    "Cycle",
    "CycleAnswer",
    "ReferenceStore",
    "Residency",
    "Vram",
    "VramAnswer",
    "VramCounters",
]
