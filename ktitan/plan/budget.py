"""Adds up a plan's bytes by tier and compares them with what is allowed."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from ktitan.errors import BudgetError, Fault, UnsupportedError
from ktitan.hardware import Hardware
from ktitan.plan.cache import add_cache, cache_hint
from ktitan.plan.devices import device_tier
from ktitan.plan.kv import (
    PREFILL_TOKENS,
    context_length,
    kv_faults,
    kv_token_bytes,
    paged,
)
from ktitan.plan.rows import Plan
from ktitan.plan.workspace import Attention, streamed_chunk, workspace_bytes
from ktitan.tiers import TIERS, format_bytes

__all__ = ["add_budget"]


def add_budget(
    plan: Plan,
    model: nn.Module,
    dtype: torch.dtype,
    hardware: Hardware,
    devices: Mapping[str, torch.device],
    context_tokens: int | None,
    kv: str,
) -> None:
    """Fill `plan.parts` and `plan.limits`, and note a fault for each tier that is too small.

    Args:
        plan: with all its rows.
        model: the stock model.
        dtype: what KV and activations are held in.
        hardware: limits where the budget is silent.
        devices: compute device of every module; an attention layer's KV lies where it computes.
        context_tokens: tokens to keep KV for; None: the model's limit up to 4096.
        kv: format of KV, of `ktitan.kv_formats`.
    """
    plan.context_tokens = context_length(model, context_tokens)
    parts: dict[str, dict[str, int]] = {}
    for row in plan.rows:
        parts.setdefault(row.tier, {"weights": 0, "kv": 0, "workspace": 0})["weights"] += row.bytes
        if row.resident_bytes:
            parts.setdefault("ram", {"weights": 0, "kv": 0, "workspace": 0})["weights"] += row.resident_bytes
    for tier, uses in plan.parts.items():
        parts.setdefault(tier, {"weights": 0, "kv": 0, "workspace": 0}).update(uses)
    plan.kv_format = kv
    per_token = kv_token_bytes(model, dtype, kv)
    if per_token is None:
        plan.notes.append("the config does not tell the size of the KV cache; it is counted as 0")
    attention = _attention(plan)
    plan.chunk_tokens = min(PREFILL_TOKENS, plan.context_tokens)  # no prompt is longer
    if any(stream.expert_slots for stream in plan.streams):
        limit = _limit(plan, "ram", hardware)
        plan.chunk_tokens = streamed_chunk(model, dtype, limit, plan.context_tokens, attention)
    shares = _attention_shares(model, devices)
    plan.add_problem(UnsupportedError, kv_faults(model, dtype, shares, kv))
    for tier, share in shares.items():
        uses = parts.setdefault(tier, {"weights": 0, "kv": 0, "workspace": 0})
        uses["kv"] += int((per_token or 0) * paged(plan.context_tokens) * share)
        kind = Attention.FUSED if tier == "vram" else attention
        uses["workspace"] += workspace_bytes(model, dtype, plan.chunk_tokens, plan.context_tokens, kind)
    if plan.streams:
        add_cache(plan, parts.setdefault("ram", {"weights": 0, "kv": 0, "workspace": 0}), _limit(plan, "ram", hardware))
    plan.parts = {tier: parts[tier] for tier in TIERS if tier in parts}
    plan.limits = {tier: limit for tier in plan.parts if (limit := _limit(plan, tier, hardware)) is not None}
    faults = [_too_small(plan, tier, limit) for tier, limit in plan.limits.items() if plan.totals[tier] > limit]
    plan.add_problem(BudgetError, faults + _full_cards(plan, hardware))


def _attention(plan: Plan) -> Attention:
    """Native where all attention layers are."""
    names = {row.operator for row in plan.rows if row.operator.startswith("attention.")}
    return Attention.NATIVE if names == {"attention.cpu"} else Attention.TORCH


def _attention_shares(model: nn.Module, devices: Mapping[str, torch.device]) -> dict[str, float]:
    """Share of the attention layers that computes from each tier; modules with a `layer_idx` are attention layers."""
    tiers = [
        device_tier(devices[path])
        for path, module in model.named_modules()
        if isinstance(getattr(module, "layer_idx", None), int) and path in devices
    ]
    tiers = tiers or [device_tier(devices[""])]
    return {tier: tiers.count(tier) / len(tiers) for tier in dict.fromkeys(tiers)}


def _limit(plan: Plan, tier: str, hardware: Hardware) -> int | None:
    """The budget, else what the machine has; NVMe has no limit of its own here."""
    asked = plan.budget.limit(tier)
    if asked is not None:
        return asked
    if tier == "ram":
        return hardware.memory.available_bytes or None
    if tier == "vram":
        return sum(gpu.free_bytes for gpu in hardware.gpus) or None
    return None


def _full_cards(plan: Plan, hardware: Hardware) -> list[Fault]:
    """GPUs whose own weights do not fit, however much room the others have."""
    faults = []
    for gpu in hardware.gpus:
        name = f"cuda:{gpu.index}"
        size = sum(row.bytes for row in plan.rows if row.device in (name, "cuda") and row.tier == "vram")
        if size > gpu.free_bytes:
            message = f"{name}: needs {format_bytes(size)} for weights, {format_bytes(gpu.free_bytes)} are free"
            faults.append(Fault(message, plan.origin, "move modules to another device"))
    return faults


def _too_small(plan: Plan, tier: str, limit: int) -> Fault:
    uses = ", ".join(f"{use} {format_bytes(size)}" for use, size in plan.parts[tier].items())
    source = "the budget" if plan.budget.limit(tier) is not None else "this machine"
    message = f"{tier}: needs {format_bytes(plan.totals[tier])} ({uses}), {source} allows {format_bytes(limit)}"
    remedy = (
        f"raise the budget, plan for fewer than {plan.context_tokens} tokens (context=, --context), or move modules"
    )
    remedy = f"{remedy} to another tier" if limit >= 1 << 20 else 'write the budget with its unit, e.g. "8GiB"'
    return Fault(message + (cache_hint(plan) if tier == "ram" else ""), plan.origin, remedy)
