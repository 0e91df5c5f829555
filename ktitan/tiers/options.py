"""How a store caches and reads ahead: what users choose, `"policy=lru,scope=global,prefetch=off"`."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ktitan.errors import Fault, UnsupportedError

__all__ = ["AUTOMATIC", "CHOICES", "HALF_LIFE_TOKENS", "POLICIES", "CacheOptions", "parse_cache"]

# In the order of enum kt_policy; "auto" is none of them.
POLICIES = ("lru", "slru", "lfu", "decayed-lfu", "sequence-lfu", "admitting", "pinned")
CHOICES = {"policy": ("auto", *POLICIES), "scope": ("auto", "layer", "global"), "prefetch": ("auto", "on", "off")}
# Those that let a record pass through instead of making room for it.
_ADMITTING = ("auto", "admitting", "pinned")

# Tokens after which a token counts half. On a trace of a trained model, with slots for 25 and 50 % of the experts, 16
# hits 53.2 and 79.3 %, 32 53.4 and 79.8 %, 64 53.0 and 79.4 % (`bench replay --policy decayed-lfu --half-life N`).
HALF_LIFE_TOKENS = 32


@dataclass(frozen=True)
class CacheOptions:
    """Who stays, and what is read early.

    Attributes:
        policy: who makes room (csrc/tiers/residency.h); "auto": the one that measures best.
        scope: whether the experts of a "layer" compete for its share of the slots, or all of a size class ("global");
            "auto": by layer, where every layer has slots enough.
        prefetch: "on": foreseen experts are always read; "auto": where it is measured to pay.
    """

    policy: str = "auto"
    scope: str = "auto"
    prefetch: str = "auto"

    @property
    def has_guests(self) -> bool:
        """Whether some slots must be spare (csrc/tiers/residency.h)."""
        return self.prefetch != "off" or self.policy in _ADMITTING


AUTOMATIC = CacheOptions()


def parse_cache(value: str | CacheOptions | None) -> CacheOptions:
    """`"policy=lru,prefetch=off"` -> CacheOptions.

    Raises:
        UnsupportedError: an unknown option or choice (also of a CacheOptions), or one twice.
    """
    if value is None:
        return AUTOMATIC
    if isinstance(value, CacheOptions):
        value = ",".join(f"{name}={getattr(value, name)}" for name in CHOICES)
    if not isinstance(value, str):
        raise UnsupportedError(f"{value!r} is no cache option", "cache", 'write for example "policy=lru,prefetch=off"')
    chosen: dict[str, str] = {}
    faults: list[Fault] = []
    for item in filter(None, (part.strip() for part in value.split(","))):
        name, _, choice = (part.strip().lower() for part in item.partition("="))
        if name not in CHOICES or name in chosen:
            known = ", ".join(field.name for field in fields(CacheOptions))
            faults.append(Fault(f"{item!r} is not one cache option and its value", "cache", f"the options are {known}"))
        elif choice not in CHOICES[name]:
            faults.append(Fault(f"{choice!r} is no {name}", "cache", f"choose {', '.join(CHOICES[name])}"))
        else:
            chosen[name] = choice
    if faults:
        raise UnsupportedError.from_faults(faults, f"{len(faults)} faults in the cache options")
    return CacheOptions(**chosen)
