"""Scaled dot-product attention in the two ways that transformers' masks are made for."""

from __future__ import annotations

import torch
from torch.nn import functional

__all__ = ["apply_mask", "eager_attention", "sdpa_attention", "sink_softmax"]


def apply_mask(scores: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """scores [..., T, S] float32 with a bool mask (True: look) or an additive one, broadcast over the front.

    Hidden positions get the lowest finite number, so a row that sees nothing (padding) stays finite.
    """
    if mask is None:
        return scores
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores + mask.to(scores.dtype)


def sink_softmax(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Softmax over S of scores [B, H, T, S]; `sinks` [H] are logits that take their share and are then dropped.

    The sink is gpt-oss's: one learned logit a head, as if there were one more key whose value is zero.
    """
    if sinks is None:
        return scores.softmax(-1)
    sink = sinks.to(scores.dtype).reshape(1, -1, 1, 1)
    top = torch.maximum(scores.amax(-1, keepdim=True), sink)
    powers = torch.exp(scores - top)
    return powers / (powers.sum(-1, keepdim=True) + torch.exp(sink - top))


def eager_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    mask: torch.Tensor | None,
    sinks: torch.Tensor | None = None,
    softcap: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention by its formula, in float32 (float64 for float64 inputs).

    query [B, H, T, D], key [B, Hk, S, D], value [B, Hk, S, Dv] with H a multiple of Hk (query head h reads key head
    h // (H / Hk)); mask broadcasts to [B, H, T, S]. Returns the output [B, H, T, Dv] and the weights [B, H, T, S], both
    in query's dtype. `softcap` bounds the scores to softcap * tanh(scores / softcap) before the mask (Gemma 2).
    """
    batch, heads, tokens, _ = query.shape
    wide = torch.promote_types(query.dtype, torch.float32)
    grouped = query.to(wide).reshape(batch, key.shape[1], -1, query.shape[-1])
    scores = (grouped @ key.to(wide).transpose(2, 3)).view(batch, heads, tokens, -1) * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    weights = sink_softmax(apply_mask(scores, mask), sinks)
    output = weights.view(batch, key.shape[1], -1, key.shape[2]) @ value.to(wide)
    return output.view(batch, heads, tokens, -1).to(query.dtype), weights.to(query.dtype)


def sdpa_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    mask: torch.Tensor | None,
    is_causal: bool,
) -> torch.Tensor:
    """Attention by torch's fused kernel; shapes as in `eager_attention`, `is_causal` only without a mask and S = T.

    One token a sequence goes in as a group of queries on each key head, which spares repeating the keys.
    """
    batch, heads, tokens, width = query.shape
    key_heads = key.shape[1]
    if tokens == 1 and heads != key_heads and (mask is None or mask.shape[1] == 1):
        grouped = query.reshape(batch, key_heads, -1, width)
        output = functional.scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=scaling)
        return output.reshape(batch, heads, 1, -1)
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=scaling, is_causal=is_causal, enable_gqa=heads != key_heads
    )
