"""Grouped-query attention on the stock children: projections, norms, rotation, cache, softmax, output."""

from __future__ import annotations

from typing import Any

import torch

from ktitan.operators.attention.call import AttentionCall
from ktitan.operators.attention.softmax import eager_attention, sdpa_attention
from ktitan.operators.attention.spec import GroupedSpec

__all__ = ["grouped_attention", "projected_heads"]


def grouped_attention(
    operator: Any, spec: GroupedSpec, hidden: torch.Tensor, call: AttentionCall
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """hidden [B, T, H] -> output [B, T, H], and the weights [B, heads, T, S] where the formula was written out."""
    query, key, value = (projected_heads(operator, spec, which, hidden).transpose(1, 2) for which in "qkv")
    query, key = call.rotate(query, key)
    key, value = call.remember(key, value)
    weights = None
    if call.eager or spec.has_sinks or spec.softcap is not None:
        mask = call.written_mask(hidden.device)
        sinks: Any = operator.sinks if spec.has_sinks else None
        output, weights = eager_attention(query, key, value, spec.scaling, mask, sinks, spec.softcap)
    else:
        output = sdpa_attention(query, key, value, spec.scaling, call.mask, call.is_causal)
    return operator.o_proj(output.transpose(1, 2).reshape(*hidden.shape[:-1], -1)), weights


def projected_heads(operator: Any, spec: GroupedSpec, which: str, hidden: torch.Tensor) -> torch.Tensor:
    """[B, T, H] -> [B, T, heads, D]: the `which` ("q", "k" or "v") projection, clipped and normalised by the spec."""
    states = getattr(operator, f"{which}_proj")(hidden)
    norm = getattr(operator, f"{which}_norm", None) if which != "v" else None
    if spec.norm_over == "all" and norm is not None:
        states = norm(states)
    if spec.clip is not None:
        states = states.clamp(-spec.clip, spec.clip)
    states = states.view(*hidden.shape[:-1], -1, spec.head_dim)
    if spec.norm_over == "head" and norm is not None:
        states = norm(states)
    return states
