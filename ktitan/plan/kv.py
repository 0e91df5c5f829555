"""Bytes that a token takes in the KV cache, from a model's config."""

from __future__ import annotations

from collections.abc import Collection
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
    "text_config",
]

DEFAULT_CONTEXT = 4096
PREFILL_TOKENS = 512

# Tokens of a page of keys and values, PAGE_TOKENS of ktitan.context; a pool takes whole ones.
_PAGE_TOKENS = 64


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
