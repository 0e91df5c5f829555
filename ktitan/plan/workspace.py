"""Bytes that a step takes as workspace, from a model's config: activations, attention, routed experts, logits.

Shape letters: T tokens of a chunk, S of the whole context, h heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

import torch
from torch import nn

from ktitan.plan.kv import PREFILL_TOKENS, kv_token_bytes, paged, text_config

__all__ = ["Attention", "streamed_chunk", "workspace_bytes"]

# Chunks of a prompt for which experts are read once each: the larger, the less often, while their workspace is at most
# this part of the RAM that is allowed.
STREAMED_CHUNKS = (2048, 1024)
CHUNK_SHARE = 8

# Live activations of a layer at once: residual, normalised input, the widest module's input, output and product, and
# two that attention makes of keys and values (`ktitan bench stream --prompt 512` measures the peak against the budget).
_LIVE_ACTIVATIONS = 7
# And in attention beside these: queries, keys and values, those that are turned, and the result.
_LIVE_HEADS = 6
# What csrc/cpu/expert_pass.h keeps of a (token, expert) pair beside the result: sorted numbers, addresses of rows.
_PAIR_BYTES = 96
# Bytes of a number of an expert's inner row: gate, up, and the product as it is quantised; and most of all rows.
_INNER_BYTES = 10
_MOST_INNER_BYTES = 80 << 20
# transformers makes the mask [T, S] of bools, from another one.
_MASK_BYTES = 2
# Scores at once, float32 [h, T, S]: before and after the softmax, and in the written formula after the mask, too.
_FUSED_SCORES, _WRITTEN_SCORES = 2, 3
# ktitan.operators.attention.latent holds as much of the absorbed scores at a time.
_ABSORBED_SCORES_BYTES = 64 << 20
# Tables of positions: frequencies, their doubles, cosines and sines, float32.
_POSITION_TABLES = 4


class Attention(Enum):
    """What computes attention: it says what exists of the scores."""

    TORCH = "torch"
    FUSED = "fused"  # torch's kernels on a GPU, for any widths of heads
    NATIVE = "native"  # a few pages a thread, csrc/program/attention.h


def workspace_bytes(
    model: nn.Module,
    dtype: torch.dtype,
    tokens: int,
    context_tokens: int,
    attention: Attention = Attention.TORCH,
) -> int:
    """An upper estimate of what a chunk takes beside weights and KV: the mask, one row of logits, and the larger of
    attention onto `context_tokens` and of the rest of a layer, which are not there at the same time. Of torch's own
    attention on the CPU both: its large pieces come from other pages than those that the allocator keeps of the rest.
    """
    config = text_config(model)
    widest = max((int(module.out_features) for module in _inner_linears(model)), default=0)
    vocabulary = getattr(config, "vocab_size", 0) or 0
    layer = tokens * widest * dtype.itemsize * _LIVE_ACTIVATIONS + _expert_bytes(model, tokens)
    heads = getattr(config, "num_attention_heads", None)
    if not heads:
        return int(layer + 4 * vocabulary)
    mask = tokens * paged(context_tokens) * _MASK_BYTES
    tables = 4 * _POSITION_TABLES * tokens * _rotary_width(config, heads)
    seen = _attention_bytes(model, dtype, tokens, context_tokens, attention)
    most = layer + seen if attention is Attention.TORCH else max(layer, seen)
    return int(most + mask + tables + 4 * vocabulary)


def streamed_chunk(
    model: nn.Module,
    dtype: torch.dtype,
    ram_bytes: int | None,
    context_tokens: int,
    attention: Attention = Attention.TORCH,
) -> int:
    """Tokens of a prompt in one forward pass where experts are streamed: each is read at most once a chunk.

    Args:
        model: the stock model.
        dtype: of activations.
        ram_bytes: that are allowed, or None.
        context_tokens: longest sequence.
        attention: what computes it.
    """
    room = (ram_bytes or 0) // CHUNK_SHARE
    for tokens in STREAMED_CHUNKS:
        if tokens <= context_tokens and workspace_bytes(model, dtype, tokens, context_tokens, attention) <= room:
            return tokens
    return min(PREFILL_TOKENS, context_tokens)


def _attention_bytes(
    model: nn.Module, dtype: torch.dtype, tokens: int, context_tokens: int, attention: Attention
) -> int:
    """What attention of a layer takes, for the last chunk of the context."""
    config = text_config(model)
    heads: int = config.num_attention_heads
    own = 2 * tokens * config.hidden_size * dtype.itemsize  # the residual and the normalised input
    if getattr(config, "kv_lora_rank", None):
        return own + _latent_bytes(config, heads, tokens, context_tokens, attention)
    own += _LIVE_HEADS * tokens * heads * _rotary_width(config, heads) * dtype.itemsize
    if attention is Attention.NATIVE:
        return own
    # Pages that are not neighbours, or native ones, are joined for a layer at a time.
    layers = getattr(config, "num_hidden_layers", None) or 1
    own += (kv_token_bytes(model, dtype) or 0) // layers * context_tokens
    if attention is Attention.TORCH and _is_written(model, config):
        return own + 4 * heads * tokens * context_tokens * _WRITTEN_SCORES
    return own + 4 * tokens * context_tokens  # the fused kernels take a mask of floats


def _latent_bytes(config: Any, heads: int, tokens: int, context_tokens: int, attention: Attention) -> int:
    """Attention on latents: absorbed where that is native, or costs fewer multiplications for many tokens
    (ktitan.operators.attention.latent), else on keys and values that kv_b_proj makes.
    """
    rank, rope, value = config.kv_lora_rank, config.qk_rope_head_dim, config.v_head_dim
    nope = getattr(config, "qk_nope_head_dim", 0)
    pairs = heads * tokens * context_tokens
    # Queries on latents, those joined with their rotated parts, and sums of latents; the last become values.
    absorbed = 4 * heads * tokens * (3 * rank + 2 * rope + value)
    if attention is Attention.NATIVE:
        return int(absorbed)
    if 2 * rank <= nope + value:
        return int(absorbed + _WRITTEN_SCORES * min(_ABSORBED_SCORES_BYTES, 4 * pairs))
    # What kv_b_proj makes; keys joined with the rotated part, and those once more as they are scaled; a mask of floats.
    expanded = 4 * heads * context_tokens * (nope + value + 2 * (nope + rope)) + 4 * tokens * context_tokens
    # On the CPU heads whose keys and values differ in width have no fused kernel.
    return int(expanded + (4 * pairs * _FUSED_SCORES if attention is Attention.TORCH else 0))


def _rotary_width(config: Any, heads: int) -> int:
    rope = getattr(config, "qk_rope_head_dim", None) or getattr(config, "head_dim", None)
    return int(rope or getattr(config, "hidden_size", 0) // heads)


def _is_written(model: nn.Module, config: Any) -> bool:
    """Whether torch computes attention by its formula: for eager models, caps and sinks."""
    eager = getattr(getattr(model, "config", None), "_attn_implementation", None) == "eager"
    capped = getattr(config, "attn_logit_softcapping", None) is not None
    return eager or capped or any(name.endswith(".sinks") for name, _ in model.named_parameters())


def _expert_bytes(model: nn.Module, tokens: int) -> int:
    """What the routed experts of a layer keep of a chunk (csrc/cpu/expert_pass.h); 0 for a dense model."""
    config = text_config(model)
    names = ("num_experts_per_tok", "moe_topk", "top_k_experts")
    chosen = next((int(n) for n in (getattr(config, name, None) for name in names) if n), 0)
    if not chosen:
        return 0
    inner = getattr(config, "moe_intermediate_size", None) or getattr(config, "intermediate_size", None) or 0
    pairs = tokens * chosen
    return int(pairs * (4 * config.hidden_size + _PAIR_BYTES) + min(_MOST_INNER_BYTES, pairs * inner * _INNER_BYTES))


def _inner_linears(model: nn.Module) -> Iterator[nn.Linear]:
    """All linear layers but the head, whose output is only wanted for the last token."""
    get_head = getattr(model, "get_output_embeddings", None)
    head = get_head() if get_head is not None else None
    for module in model.modules():
        if isinstance(module, nn.Linear) and module is not head:
            yield module
