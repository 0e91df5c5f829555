"""How many tokens a prompt and its answer may have together."""

from __future__ import annotations

from typing import Any

from ktitan.context import PAGE_TOKENS

__all__ = ["context_tokens"]


def context_tokens(model: Any, asked: int | None) -> int | None:
    """The least of the model's positions, what was asked for, and what the KV budget holds; None: no limit is known."""
    positions = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    limits = [limit for limit in (positions, asked, _kv_tokens(model)) if limit]
    return min(limits, default=None)


def _kv_tokens(model: Any) -> int | None:
    """Tokens whose keys and values fit in the model's budget, in whole pages."""
    handle = getattr(model, "ktitan", None)
    budget_bytes = getattr(handle, "kv_budget_bytes", None)
    if handle is None or budget_bytes is None or not handle.plan.context_tokens:
        return None
    planned_bytes = sum(uses.get("kv", 0) for uses in handle.plan.parts.values())
    if not planned_bytes:
        return None
    return int(budget_bytes * handle.plan.context_tokens // planned_bytes) // PAGE_TOKENS * PAGE_TOKENS or 1
