"""Multi-head latent attention on the stock children, absorbed or expanded, over the stock cache of latents.

Shape letters besides the usual ones: h heads, r rank of the latent, n and p parts of a key head without and with
rotation, v width of a value head. The cache holds the latent [B, 1, S, r] and the rotated part [B, 1, S, p].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ktitan.operators.attention.call import AttentionCall
from ktitan.operators.attention.softmax import apply_mask, eager_attention, sdpa_attention
from ktitan.operators.attention.spec import LatentSpec
from ktitan.operators.stock import altered_reason

__all__ = ["absorbed_is_cheaper", "dense_expansion", "latent_attention", "projected_queries"]

# Scores of the absorbed form are held in float32 for as many query tokens at a time as fit in this.
_SCORE_BYTES = 64 << 20


def latent_attention(
    operator: Any, spec: LatentSpec, hidden: torch.Tensor, call: AttentionCall, absorb: bool | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """hidden [B, T, H] -> output [B, T, H], and weights [B, h, T, S] only where the formula was written out.

    Args:
        operator: holds the stock children by their names.
        spec: sizes and scaling.
        hidden: the layer's input.
        call: positions, mask and cache.
        absorb: True absorbs wherever kv_b_proj has dense weights, False never does, None takes the cheaper form.
    """
    queries = projected_queries(operator, spec, hidden).transpose(1, 2)
    query_nope, query_rope = queries.split([spec.nope_dim, spec.rope_dim], dim=-1)
    joined = operator.kv_a_proj_with_mqa(hidden)
    latent, key_rope = joined.split([spec.rank, spec.rope_dim], dim=-1)
    latent = operator.kv_a_layernorm(latent).unsqueeze(1)
    query_rope, key_rope = call.rotate(query_rope, key_rope.unsqueeze(1))
    latent, key_rope = call.remember(latent, key_rope)
    expansion = None if absorb is False else dense_expansion(operator.kv_b_proj, latent)
    if expansion is not None and (absorb or absorbed_is_cheaper(spec, hidden.shape[1], latent.shape[2])):
        mask = call.written_mask(hidden.device)
        output, weights = _absorbed(spec, expansion, query_nope, query_rope, latent, key_rope, mask), None
    else:
        output, weights = _expanded(operator, spec, query_nope, query_rope, latent, key_rope, call)
    return operator.o_proj(output.transpose(1, 2).reshape(*hidden.shape[:-1], -1)), weights


def absorbed_is_cheaper(spec: LatentSpec, tokens: int, seen: int) -> bool:
    """Whether T query tokens over S seen ones cost fewer multiplications absorbed than expanded, a head.

    Absorbed, each query goes through r (n + v) weights and each score and sum is r wide; expanded, each seen token
    goes through those weights and the score and sum have the widths of the heads.
    """
    weights = spec.rank * (spec.nope_dim + spec.value_dim)
    absorbed = tokens * weights + tokens * seen * (2 * spec.rank + spec.rope_dim)
    expanded = seen * weights + tokens * seen * (spec.nope_dim + spec.rope_dim + spec.value_dim)
    return absorbed < expanded


def dense_expansion(projection: nn.Module, latent: torch.Tensor) -> torch.Tensor | None:
    """W [h (n + v), r] when calling `projection` means `latent @ W.T` and nothing else, otherwise None.

    Any callable may stand at kv_b_proj (quantised, hooked, adapted): only a plain nn.Linear, or an operator that says
    so with `dense_weight()`, may be taken apart.
    """
    if altered_reason(projection) is not None:
        return None
    says: Any = getattr(projection, "dense_weight", None)
    if says is not None:
        weight = says()
    elif type(projection).forward is nn.Linear.forward and projection.bias is None:
        weight = projection.weight
    else:
        return None
    same = weight is not None and weight.dtype == latent.dtype and weight.device == latent.device
    return weight if same else None


def projected_queries(operator: Any, spec: LatentSpec, hidden: torch.Tensor) -> torch.Tensor:
    """[B, T, H] -> queries [B, T, h, n + p], not yet rotated."""
    if spec.has_query_rank:
        states = operator.q_b_proj(operator.q_a_layernorm(operator.q_a_proj(hidden)))
    else:
        states = operator.q_proj(hidden)
    return states.view(*hidden.shape[:-1], -1, spec.nope_dim + spec.rope_dim)


def _absorbed(
    spec: LatentSpec,
    expansion: torch.Tensor,
    query_nope: torch.Tensor,
    query_rope: torch.Tensor,
    latent: torch.Tensor,
    key_rope: torch.Tensor,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """Attention in the space of latents: keys and values of the S tokens are never made. Returns [B, h, T, v].

    With the key of head h being W_k c and its value W_v c for the latent c, the score q . (W_k c) is (W_k^T q) . c, and
    the sum of values is W_v (sum of weighted latents).
    """
    heads = query_nope.shape[1]
    key_weight, value_weight = expansion.view(heads, -1, spec.rank).split([spec.nope_dim, spec.value_dim], dim=1)
    query_latent = _by_head(query_nope, key_weight)
    wide = torch.promote_types(latent.dtype, torch.float32)
    keys, ropes = latent[:, 0].to(wide), key_rope[:, 0].to(wide)
    sums = torch.empty_like(query_latent)
    step = max(1, _SCORE_BYTES // max(1, 4 * latent.shape[0] * heads * latent.shape[2]))
    for start in range(0, query_nope.shape[2], step):
        rows = slice(start, start + step)
        scores = _dots(query_latent[:, :, rows], keys) + _dots(query_rope[:, :, rows], ropes)
        visible = mask if mask is None or mask.shape[-2] == 1 else mask[..., rows, :]
        weights = apply_mask(scores * spec.scaling, visible).softmax(-1)
        sums[:, :, rows] = (weights.flatten(1, 2) @ keys).view(*weights.shape[:3], -1).to(sums.dtype)
    return _by_head(sums, value_weight.transpose(1, 2))


def _by_head(states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """states [B, h, T, i] times each head's weight [h, i, o] -> [B, h, T, o]; the weight is not copied per batch."""
    batch, heads, tokens, _ = states.shape
    rows = states.transpose(0, 1).reshape(heads, batch * tokens, -1)
    return (rows @ weight).view(heads, batch, tokens, -1).transpose(0, 1)


def _dots(query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """query [B, h, T, i] with keys [B, S, i] that all heads share -> [B, h, T, S] in the dtype of the keys."""
    batch, heads, tokens, width = query.shape
    rows = query.to(keys.dtype).reshape(batch, heads * tokens, width)
    return (rows @ keys.transpose(1, 2)).view(batch, heads, tokens, -1)


def _expanded(
    operator: Any,
    spec: LatentSpec,
    query_nope: torch.Tensor,
    query_rope: torch.Tensor,
    latent: torch.Tensor,
    key_rope: torch.Tensor,
    call: AttentionCall,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Plain attention on keys and values that kv_b_proj makes of all S latents. Returns [B, h, T, v] and weights."""
    heads = query_nope.shape[1]
    made = operator.kv_b_proj(latent[:, 0]).view(latent.shape[0], -1, heads, spec.nope_dim + spec.value_dim)
    key_nope, value = made.transpose(1, 2).split([spec.nope_dim, spec.value_dim], dim=-1)
    key = torch.cat([key_nope, key_rope.expand(-1, heads, -1, -1)], dim=-1)
    query = torch.cat([query_nope, query_rope], dim=-1)
    if call.eager:
        return eager_attention(query, key, value, spec.scaling, call.written_mask(query.device))
    return sdpa_attention(query, key, value, spec.scaling, call.mask, call.is_causal), None
