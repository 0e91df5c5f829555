"""Native attention over what a cache holds: over the pages of a native pool, else over tensors."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from ktitan.context import PagedCache
from ktitan.native.attention import Attention, attend, attend_pool
from ktitan.native.pool import NativePool
from ktitan.operators.attention.call import AttentionCall

__all__ = ["attend_cached", "attend_tensors", "window_of"]


def attend_cached(
    what: Attention, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: AttentionCall
) -> torch.Tensor:
    """Append a step's keys and values to the cache, and attend to all that it then holds.

    Args:
        what: sizes and scaling.
        query: [B, T, H, D], already turned by its positions, as are the keys.
        key: [B, T, Hk, Dk].
        value: [B, T, Hv, Dv].
        call: mask and cache. In a native pool a token sees itself and earlier ones of its sequence, less what the mask
            hides; a mask that shows later tokens needs the tensors.

    Returns:
        [B, T, H, Dv], or [B, T, H, Dk] of latents.

    Raises:
        BudgetError: the pool is full.
        UnsupportedError: several tokens came without a mask onto a cache of tensors that holds earlier ones.
    """
    rows, tokens = query.shape[:2]
    cache: Any = call.cache
    pool = _native_pool(cache)
    key, value = key.transpose(1, 2), value.transpose(1, 2)
    if pool is None or not call.looks_back or _sees_ahead(call.mask, tokens):
        return attend_tensors(what, query, *call.remember(key, value), call)
    cache.append(key, value, call.layer)
    packed = query.flatten(0, 1)
    out = attend_pool(pool, call.layer, what, cache.sequences, (tokens,) * rows, packed, call.mask)
    return out.unflatten(0, (rows, tokens))


def attend_tensors(
    what: Attention, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: AttentionCall
) -> torch.Tensor:
    """Attention of query [B, T, H, D] on key [B, Hk, S, Dk] and value [B, Hv, S, Dv] -> [B, T, H, Dv]."""
    return attend(what, query, key.transpose(1, 2), value.transpose(1, 2), call.mask, call.is_causal)


def window_of(module: Any) -> int:
    """Tokens that a stock attention looks back at, itself included; 0: all.

    Read from what its forward hands to the attention function as `sliding_window`, which its own masks repeat.
    """
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    constants = () if code is None else code.co_consts
    words = {word for one in constants for word in (one if isinstance(one, tuple) else (one,))}
    if "sliding_window" not in words:
        return 0
    return getattr(module, "sliding_window", getattr(module.config, "sliding_window", None)) or 0


def _native_pool(cache: Any) -> NativePool | None:
    """The pool behind a cache of ktitan's, where native code owns it."""
    pool = cache.pool if isinstance(cache, PagedCache) else None
    return getattr(pool, "native", None)


def _sees_ahead(mask: torch.Tensor | None, tokens: int) -> bool:
    """Whether a mask [B, H, T, S] shows a token one that comes after it in the step."""
    if mask is None or tokens == 1:
        return False
    new = mask[..., -tokens:]
    shown = new if new.dtype is torch.bool else new > torch.finfo(new.dtype).min / 2
    return bool(shown.triu(1).any())
