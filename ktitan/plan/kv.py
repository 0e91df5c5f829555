"""Bytes that a token takes in the KV cache, and that a step takes as workspace, from a model's config."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

__all__ = ["DEFAULT_CONTEXT", "PREFILL_TOKENS", "context_length", "kv_token_bytes", "paged", "workspace_bytes"]

DEFAULT_CONTEXT = 4096
PREFILL_TOKENS = 512

# Tokens of a page of keys and values, PAGE_TOKENS of ktitan.context; a pool takes whole ones.
_PAGE_TOKENS = 64
# Live activations of a layer at once: residual, normalised input, and the widest module's input, output and product.
_LIVE_ACTIVATIONS = 5


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


def kv_token_bytes(model: nn.Module, dtype: torch.dtype) -> int | None:
    """Bytes per token over all layers; None when the config does not tell.

    Latent attention (DeepSeek) caches kv_lora_rank + qk_rope_head_dim numbers a layer, others 2 x heads x head_dim.
    """
    config = text_config(model)
    layers = getattr(config, "num_hidden_layers", None)
    heads = getattr(config, "num_attention_heads", None)
    if not layers or not heads:
        return None
    rank = getattr(config, "kv_lora_rank", None)
    if rank:
        return int(layers * (rank + config.qk_rope_head_dim) * dtype.itemsize)
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return int(layers * 2 * kv_heads * head_dim * dtype.itemsize)


def workspace_bytes(model: nn.Module, dtype: torch.dtype) -> int:
    """An upper estimate of a prefill chunk's activations: 512 tokens by the widest layer, and one row of logits."""
    widest = max((int(module.out_features) for module in _inner_linears(model)), default=0)
    vocabulary = getattr(text_config(model), "vocab_size", 0) or 0
    return PREFILL_TOKENS * widest * dtype.itemsize * _LIVE_ACTIVATIONS + 4 * vocabulary


def _inner_linears(model: nn.Module) -> Iterator[nn.Linear]:
    """All linear layers but the head, whose output is only wanted for the last token."""
    get_head = getattr(model, "get_output_embeddings", None)
    head = get_head() if get_head is not None else None
    for module in model.modules():
        if isinstance(module, nn.Linear) and module is not head:
            yield module
