"""Logits of every position of a sequence, a few tokens at a time, so that [S, V] never exists as a whole.

Shape letters: S tokens of the sequence, T tokens of a chunk, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch

from ktitan.context import step
from ktitan.engine.cache import KtitanCache
from ktitan.engine.generate import cache_keyword, new_cache
from ktitan.errors import UnsupportedError

__all__ = ["score"]


def score(model: Any, row: torch.Tensor, chunk_tokens: int) -> Iterator[torch.Tensor]:
    """Logits [T, V] of the chunks of one sequence, in order, T <= `chunk_tokens`, on the model's device.

    A sequence of one chunk runs without a cache; a longer one as a prompt does, each chunk onto the keys and values of
    those before it. Models that keep a running state restart it at every pass of several tokens, so the whole sequence
    runs once for each chunk and only the chunk's positions go through the head (`logits_to_keep`).

    Args:
        model: causal language model of transformers, stock or injected.
        row: token ids [S] int64.
        chunk_tokens: most tokens of a chunk, >= 1.

    Raises:
        UnsupportedError: the sequence is longer than the model's positions, or longer than a chunk and the model can
            neither continue from a cache nor keep some positions only.
    """
    positions = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    if positions and len(row) > positions:
        raise UnsupportedError(
            f"a window has {len(row)} tokens, but the model has positions for {positions}",
            "max_position_embeddings",
            "give shorter windows",
        )
    if len(row) <= chunk_tokens:
        return _whole(model, row)
    if getattr(model, "_is_stateful", False):
        return _repeated(model, row, chunk_tokens)
    return _cached(model, row, chunk_tokens)


@torch.inference_mode()
def _forward(model: Any, row: torch.Tensor, first: int, **arguments: Any) -> torch.Tensor:
    """Logits [T, V] of tokens `row` [T], the first of which stands at position `first`."""
    if "position_ids" in inspect.signature(model.forward).parameters:  # as stock generate does
        arguments["position_ids"] = torch.arange(first, first + len(row), device=model.device)[None]
    logits: torch.Tensor = model(input_ids=row[None].to(model.device), **arguments).logits
    return logits[0]


def _whole(model: Any, row: torch.Tensor) -> Iterator[torch.Tensor]:
    yield _forward(model, row, 0, use_cache=False)


def _cached(model: Any, row: torch.Tensor, chunk_tokens: int) -> Iterator[torch.Tensor]:
    keyword, cache = cache_keyword(model), new_cache(model)
    first = 0
    for chunk in row.split(chunk_tokens):
        paged = isinstance(cache, KtitanCache)
        with step(cache.step_context(len(chunk))) if paged else nullcontext():
            logits = _forward(model, chunk, first, use_cache=True, **{keyword: cache})
        first += len(chunk)
        yield logits


def _repeated(model: Any, row: torch.Tensor, chunk_tokens: int) -> Iterator[torch.Tensor]:
    if "logits_to_keep" not in inspect.signature(model.forward).parameters:
        raise UnsupportedError(
            f"{type(model).__name__} keeps a running state and takes no logits_to_keep: it runs whole windows only",
            f"windows of {len(row)} tokens",
            f"give windows of at most {chunk_tokens} tokens, or a larger chunk",
        )
    for wanted in torch.arange(len(row), device=model.device).split(chunk_tokens):
        yield _forward(model, row, 0, use_cache=False, logits_to_keep=wanted)
