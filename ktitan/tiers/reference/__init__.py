"""The store's decisions in Python: what csrc/tiers does, for tests against it and for replaying traces."""

from __future__ import annotations

from ktitan.tiers.reference.auto import Auto, AutoSpec
from ktitan.tiers.reference.cycle import Cycle, CycleAnswer
from ktitan.tiers.reference.policies import Policy
from ktitan.tiers.reference.residency import Answer, Placed, Residency, ResidencySpec
from ktitan.tiers.reference.store import Counters, ReferenceStore, StoreSpec
from ktitan.tiers.reference.vram import Vram, VramAnswer, VramCounters

__all__ = [
    "Answer",
    "Auto",
    "AutoSpec",
    "Counters",
    "Cycle",
    "CycleAnswer",
    "Placed",
    "Policy",
    "ReferenceStore",
    "Residency",
    "ResidencySpec",
    "StoreSpec",
    "Vram",
    "VramAnswer",
    "VramCounters",
]
