"""What lies where: used bytes and budgets of the three tiers, and how fast the model is."""

from __future__ import annotations

from typing import Any

from ktitan.server.engine import Engine

__all__ = ["Tiers"]

_TIERS = ("vram", "ram", "nvme")


class Tiers:
    """Reads the model's handle and the job that runs.

    Weights do not move in this version, so their bytes are counted once. Hits, misses and drive rates are null: nothing
    is streamed yet.
    """

    def __init__(self, model: Any, engine: Engine) -> None:
        handle = getattr(model, "ktitan", None)
        self._engine = engine
        self._parts: dict[str, dict[str, int]] = handle.plan.parts if handle else {}
        self._limits: dict[str, int] = handle.plan.limits if handle else {}
        self._weights: dict[str, int] = handle.stats()["resident_bytes"] if handle else {}
        planned = {tier: uses.get("kv", 0) for tier, uses in self._parts.items()}
        total = sum(planned.values())
        self._kv_shares = {tier: size / total for tier, size in planned.items()} if total else {"ram": 1.0}

    def report(self) -> dict[str, Any]:
        """The state now, as plain data; null where nothing is known."""
        engine = self._engine
        return {
            "tiers": {tier: self._tier(tier) for tier in _TIERS},
            "queue": {
                "waiting": len(engine.queue),
                "running": int(engine.running is not None),
                "limit": engine.queue.limit,
            },
            "speed": _speed(engine.running.stats if engine.running else engine.last_stats),
        }

    def column(self, name: str) -> dict[str, float]:
        """One figure of every tier that has it."""
        values = {tier: self._tier(tier)[name] for tier in _TIERS}
        return {tier: float(value) for tier, value in values.items() if value is not None}

    def _tier(self, tier: str) -> dict[str, Any]:
        running = self._engine.running
        kv_bytes = running.stats.kv_bytes if running and running.stats else 0
        kv = int(kv_bytes * self._kv_shares.get(tier, 0))
        weights = self._weights.get(tier, 0)
        return {
            "used_bytes": weights + kv,
            "weights_bytes": weights,
            "kv_bytes": kv,
            "planned": self._parts.get(tier),
            "budget_bytes": self._limits.get(tier),
            "hits": None,
            "misses": None,
            "read_bytes_per_second": None,
        }


def _speed(stats: Any) -> dict[str, float | None]:
    """Tokens a second of the answer that runs, or of the last one."""
    if stats is None:
        return {"prefill_tokens_per_second": None, "decode_tokens_per_second": None}
    return {
        "prefill_tokens_per_second": round(stats.prefill_tokens_per_second, 2),
        "decode_tokens_per_second": round(stats.decode_tokens_per_second, 2),
    }
