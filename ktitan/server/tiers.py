"""What lies where: used bytes and budgets of the three tiers, and how fast the model is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ktitan.server.engine import Engine
from ktitan.server.streaming import Streaming

__all__ = ["Tiers"]

_TIERS = ("vram", "ram", "nvme")


class Tiers:
    """Reads the model's handle and the job that runs; waits for neither.

    Resident weights do not move, so their bytes are counted once. The cache of streamed weights is RAM's, with the
    hits and misses; the rate of reads is the drive's. These are null where nothing is streamed.

    Attributes:
        streaming: figures of streamed weights.
    """

    def __init__(self, model: Any, engine: Engine) -> None:
        handle = getattr(model, "ktitan", None)
        self._engine = engine
        self._parts: dict[str, dict[str, int]] = handle.plan.parts if handle else {}
        self._limits: dict[str, int] = handle.plan.limits if handle else {}
        stats: dict[str, Any] = handle.stats() if handle else {"resident_bytes": {}, "store": None}
        self._weights: dict[str, int] = dict(stats["resident_bytes"])
        if stats["store"] is not None:
            self._weights["ram"] -= stats["store"]["arena_bytes"]
            self._weights["nvme"] = self._parts["nvme"]["weights"]
        planned = {tier: uses.get("kv", 0) for tier, uses in self._parts.items()}
        total = sum(planned.values())
        self._kv_shares = {tier: size / total for tier, size in planned.items()} if total else {"ram": 1.0}
        self.streaming = Streaming(handle)

    def report(self) -> dict[str, Any]:
        """The state now, as plain data; null where nothing is known."""
        engine = self._engine
        counters = self.streaming.counters()
        return {
            "tiers": {tier: self._tier(tier, counters) for tier in _TIERS},
            "streaming": self.streaming.report(counters),
            "queue": {
                "waiting": len(engine.queue),
                "running": int(engine.running is not None),
                "limit": engine.queue.limit,
            },
            "speed": _speed(engine.running.stats if engine.running else engine.last_stats),
        }

    def column(self, name: str) -> dict[str, float]:
        """One figure of every tier that has it."""
        counters = self.streaming.counters()
        values = {tier: self._tier(tier, counters)[name] for tier in _TIERS}
        return {tier: float(value) for tier, value in values.items() if value is not None}

    def _tier(self, tier: str, counters: Mapping[str, Any] | None) -> dict[str, Any]:
        running, kept = self._engine.running, self._engine.prompt_cache
        kv_bytes = running.stats.kv_bytes if running and running.stats else 0
        kv_bytes = max(kv_bytes, 0 if kept is None else kept.allocated_bytes)
        kv = int(kv_bytes * self._kv_shares.get(tier, 0))
        weights = self._weights.get(tier, 0)
        streaming = self._streaming(tier, counters)
        return {
            "used_bytes": weights + kv + (streaming["cache_bytes"] or 0),
            "weights_bytes": weights,
            "kv_bytes": kv,
            "planned": self._parts.get(tier),
            "budget_bytes": self._limits.get(tier),
            **streaming,
        }

    def _streaming(self, tier: str, store: Mapping[str, Any] | None) -> dict[str, Any]:
        """What the counters of streamed weights say of a tier."""
        names = ("cache_bytes", "cached_bytes", "hits", "misses", "read_bytes", "read_bytes_per_second")
        figures: dict[str, Any] = dict.fromkeys(names)
        if store is not None and tier == "ram":
            figures |= {"cache_bytes": store["arena_bytes"], "cached_bytes": store["resident_bytes"]}
            figures |= {"hits": store["hits"], "misses": store["misses"]}
        if store is not None and tier == "nvme":
            recent = self.streaming.recent(store)
            rate = None if recent is None else recent.read_bytes_per_second
            figures |= {"read_bytes": store["io"]["read_bytes"], "read_bytes_per_second": rate}
        return figures


def _speed(stats: Any) -> dict[str, float | None]:
    """Tokens a second of the answer that runs, or of the last one."""
    if stats is None:
        return {"prefill_tokens_per_second": None, "decode_tokens_per_second": None}
    return {
        "prefill_tokens_per_second": round(stats.prefill_tokens_per_second, 2),
        "decode_tokens_per_second": round(stats.decode_tokens_per_second, 2),
    }
