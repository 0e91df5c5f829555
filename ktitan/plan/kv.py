"""Bytes that a token takes in the KV cache, and that a step takes as workspace, from a model's config."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import nn

from ktitan.errors import Fault
from ktitan.kv_formats import AS_COMPUTED, KV_FORMATS

__all__ = [
    "DEFAULT_CONTEXT",
    "PREFILL_TOKENS",
    "context_length",
    "kv_faults",
    "kv_token_bytes",
    "paged",
    "streamed_chunk",
    "workspace_bytes",
]

DEFAULT_CONTEXT = 4096
PREFILL_TOKENS = 512
# Chunks of a prompt for which experts are read once each: the larger, the less often, while their workspace is at most
# this part of the RAM that is allowed.
STREAMED_CHUNKS = (2048, 1024)
CHUNK_SHARE = 8

# Tokens of a page of keys and values, PAGE_TOKENS of ktitan.context; a pool takes whole ones.
_PAGE_TOKENS = 64
# Live activations of a layer at once: residual, normalised input, the widest module's input, output and product, and
# two that attention makes of keys and values (`ktitan bench stream --prompt 512` measures the peak against the budget).
_LIVE_ACTIVATIONS = 7
# What csrc/cpu/expert_pass.h keeps of a (token, expert) pair beside the result: sorted numbers, addresses of rows.
_PAIR_BYTES = 96
# Bytes of a number of an expert's inner row: gate, up, and the product as it is quantised; and most of all rows.
_INNER_BYTES = 10
_MOST_INNER_BYTES = 80 << 20


def text_config(model: nn.Module) -> Any:
    """The config of the language model inside `model`, or None."""
    config = getattr(model, "config", None)
    get = getattr(config, "get_text_config", None)
    return get() if get is not None else config


def context_length(model: nn.Module, asked: int | None) -> int:
    """Tokens to plan the KV cache for: what was asked, else the model's limit up to 4096."""
    limit = getattr(text_config(model), "max_position_embeddings", None)
    return asked or min(limit or DEFAULT_CONTEXT, DEFAULT_CONTEXT)


def paged(tokens: int) -> int:
    """`tokens` rounded up to whole pages of keys and values."""
    return -(-tokens // _PAGE_TOKENS) * _PAGE_TOKENS


def kv_token_bytes(model: nn.Module, dtype: torch.dtype, kv: str = AS_COMPUTED) -> int | None:
    """Bytes per token over all layers in a format of the KV cache; None when the config does not tell."""
    layers = getattr(text_config(model), "num_hidden_layers", None)
    rows = _kv_rows(model)
    if not layers or rows is None:
        return None
    if kv == AS_COMPUTED:
        return int(layers * sum(heads * width for heads, width in rows) * dtype.itemsize)
    return int(layers * sum(heads * KV_FORMATS[kv].row_bytes(width) for heads, width in rows))


def kv_faults(model: nn.Module, dtype: torch.dtype, tiers: Collection[str], kv: str) -> list[Fault]:
    """Why keys and values cannot be stored in the format `kv`.

    Args:
        model: the stock model.
        dtype: that it computes in.
        tiers: where its attention computes.
        kv: of `KV_FORMATS`.
    """
    if kv == AS_COMPUTED:
        return []
    faults = []
    if dtype is not torch.float32:
        message = f"{kv} is stored from float32, and the model computes in {str(dtype).removeprefix('torch.')}"
        faults.append(Fault(message, "kv", f'load it with dtype="float32" (--dtype float32), or kv="{AS_COMPUTED}"'))
    if set(tiers) != {"ram"}:
        message = f"{kv} is stored on the CPU, and attention computes from {', '.join(sorted(tiers))}"
        faults.append(Fault(message, "kv", f'compute on the CPU, or leave it at kv="{AS_COMPUTED}"'))
    block = KV_FORMATS[kv].block
    odd = sorted({width for _, width in _kv_rows(model) or () if width % block})
    if odd:
        message = f"{kv} stores blocks of {block} numbers, and heads are {' and '.join(map(str, odd))} wide"
        whole = [name for name, stored in KV_FORMATS.items() if stored.block == 1]
        faults.append(Fault(message, "kv", f"choose {' or '.join(whole)}"))
    return faults


def _kv_rows(model: nn.Module) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Heads and their widths, of keys and of values, that a layer stores a token; None when the config does not tell.

    Latent attention (DeepSeek) caches kv_lora_rank and qk_rope_head_dim numbers.
    """
    config = text_config(model)
    heads = getattr(config, "num_attention_heads", None)
    if not heads:
        return None
    rank = getattr(config, "kv_lora_rank", None)
    if rank:
        return (1, rank), (1, config.qk_rope_head_dim)
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return (kv_heads, head_dim), (kv_heads, head_dim)


def workspace_bytes(model: nn.Module, dtype: torch.dtype, tokens: int = PREFILL_TOKENS) -> int:
    """An upper estimate of a chunk's activations: `tokens` by the widest layer, what routed experts keep of
    it, and one row of logits.
    """
    widest = max((int(module.out_features) for module in _inner_linears(model)), default=0)
    vocabulary = getattr(text_config(model), "vocab_size", 0) or 0
    dense = tokens * widest * dtype.itemsize * _LIVE_ACTIVATIONS
    return dense + _expert_bytes(model, tokens) + 4 * vocabulary


def streamed_chunk(model: nn.Module, dtype: torch.dtype, ram_bytes: int | None, context_tokens: int) -> int:
    """Tokens of a prompt in one forward pass where experts are streamed: each is read at most once a chunk.

    Args:
        model: the stock model.
        dtype: of activations.
        ram_bytes: that are allowed, or None.
        context_tokens: longest sequence.
    """
    config = text_config(model)
    heads = getattr(config, "num_attention_heads", None) or 0
    for tokens in STREAMED_CHUNKS:
        # Attention may hold the scores of a layer, in float32, before and after the softmax.
        scores = 2 * 4 * heads * tokens * context_tokens
        room = (ram_bytes or 0) // CHUNK_SHARE
        if tokens <= context_tokens and workspace_bytes(model, dtype, tokens) + scores <= room:
            return tokens
    return min(PREFILL_TOKENS, context_tokens)


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
