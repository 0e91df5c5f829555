"""Keys and values of what a model has read, kept for prompts that begin alike: the next turn of a chat runs only its
new tokens.
"""

from __future__ import annotations

import copy
import logging
import threading
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from ktitan.context import PAGE_TOKENS, KVPool
from ktitan.engine.cache import KtitanCache
from ktitan.engine.generate import new_cache
from ktitan.errors import UnsupportedError
from ktitan.fingerprint import fingerprint

__all__ = ["Loan", "PromptCache"]

log = logging.getLogger("ktitan.engine.prompt_cache")

# Conversations that are kept while the KV budget has room for them.
MOST_PROMPTS = 16

# Rotary embeddings that turn the first keys in another way once the sequence is longer.
_BY_LENGTH = ("dynamic", "longrope")


@dataclass
class _Kept:
    """A sequence: its tokens [S] int64, and a cache with their keys and values."""

    tokens: torch.Tensor
    cache: KtitanCache


class PromptCache:
    """Keeps the keys and values of finished generations of one model, in one pool within the model's KV budget.

    A new prompt gets those of the kept sequence that begins like it for the longest: it takes them over where it goes
    on from there, or shares their pages (copied on write) where the kept sequence has gone another way. The sequences
    that were not used for the longest time make room when the budget (`model.ktitan.kv_allowance`) or `most_prompts`
    asks for it, up to the last one: no generation fails for want of room that another one is kept in.

    What is kept is forgotten when the model's modules, hooks or tensors change (adapters, `undo()`), when a budget
    becomes smaller (`rebudget()`), and by `clear()`. It may be used from any thread; one generation at a time uses it,
    and others that begin meanwhile run without it.

    Args:
        model: causal language model of transformers, stock or injected.
        most_prompts: sequences that are kept, >= 1; with 1 nothing is shared, and a chat has its pages in a row.

    Attributes:
        refusal: why nothing can be kept of this model; None where it can. Generations run without it then.
    """

    def __init__(self, model: Any, most_prompts: int = MOST_PROMPTS) -> None:
        if most_prompts < 1:
            raise UnsupportedError(f"most_prompts is {most_prompts}", "most_prompts", "give a whole number from 1 on")
        self._model = model
        self._most = most_prompts
        self._lock = threading.RLock()
        self._pool: KVPool | None = None
        self._kept: list[_Kept] = []  # the last used one last
        self._loan: weakref.ref[Loan] | None = None
        self._state = 0
        self.refusal = _refusal(model)
        if self.refusal is not None:
            log.info("prompts are not kept: %s", self.refusal)
        allowance = getattr(getattr(model, "ktitan", None), "kv_allowance", None)
        if allowance is not None:
            allowance.keep(self)

    def __len__(self) -> int:
        """Sequences that are kept now."""
        return len(self._kept)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the pool: of kept sequences, of the generation that runs, and of free pages."""
        pool = self._pool
        return 0 if pool is None else int(getattr(pool, "allocated_bytes", pool.used_bytes))

    @property
    def used_bytes(self) -> int:
        """Bytes of the pages that kept sequences, and the generation that runs, use."""
        pool = self._pool
        return 0 if pool is None else pool.used_bytes

    def lend(self, prompt: torch.Tensor) -> Loan:
        """A cache for a generation from `prompt` [S] int64, with the keys and values of its first tokens.

        The last token's are never among them, since its logits are wanted. The loan must be ended.
        """
        if self.refusal is not None or self._is_lent():
            return Loan(None, new_cache(self._model), 0)
        with self._lock:
            state = fingerprint(self._model)
            if state != self._state:
                self.clear()
                self._state = state
            cache, cached = self._longest(prompt)
            loan = Loan(self, cache, cached)
            self._loan = weakref.ref(loan)
            return loan

    def clear(self) -> None:
        """Forget all sequences and give their pages back; waits for the step that runs."""
        with self._lock:
            kept, self._kept = self._kept, []
            for one in kept:
                one.cache.release()
            if not self._is_lent():
                self._pool = None

    def check_model(self, model: Any) -> None:
        """Raises UnsupportedError unless `model` is the one that this cache was made for."""
        if model is not self._model:
            raise UnsupportedError("the prompt cache is another model's", "prompt_cache", "make one for each model")

    def free_oldest(self) -> bool:
        """Let the sequence go that was not used for the longest time; False when none is left."""
        with self._lock:
            if not self._kept:
                return False
            self._kept.pop(0).cache.release()
            return True

    def _is_lent(self) -> bool:
        if self._loan is None:
            return False
        if self._loan() is not None:
            return True
        # Nobody ended it: its pages would stay in the pool, so the pool goes.
        self._loan, self._pool, self._kept = None, None, []
        return False

    def _longest(self, prompt: torch.Tensor) -> tuple[KtitanCache, int]:
        """A cache with as many of the first tokens as any kept sequence has, and their number."""
        shared = [min(_common(one.tokens, prompt), prompt.shape[0] - 1) for one in self._kept]
        best = max(range(len(shared)), key=lambda index: (shared[index], index), default=None)
        if best is None or shared[best] == 0:
            if len(self._kept) >= self._most:
                self.free_oldest()
            return self._empty(), 0
        kept, length = self._kept.pop(best), shared[best]
        cache = kept.cache
        if kept.tokens.shape[0] - length >= PAGE_TOKENS and self._most > 1:
            cache = copy.deepcopy(kept.cache)  # in a shared pool that is a fork
            self._kept.append(kept)
            while len(self._kept) >= self._most:
                self.free_oldest()
        cache.crop(length)
        return cache, length

    def _empty(self) -> KtitanCache:
        if self._pool is None:
            self._pool = new_cache(self._model).pool
        return KtitanCache(config=self._model.config, pool=self._pool)

    def _take_back(self, cache: KtitanCache, tokens: Sequence[int]) -> None:
        """The generation is over; the cache holds `tokens`, and perhaps part of a step beyond them."""
        with self._lock:
            self._loan = None
            # A step that was interrupted may have left more in some layers; a model that writes none leaves nothing.
            length = min(len(tokens), _shortest(cache))
            if not length or fingerprint(self._model) != self._state:
                cache.release()
                return
            cache.crop(length)
            self._kept.append(_Kept(torch.tensor(tokens[:length], dtype=torch.int64), cache))


class Loan:
    """A cache that a generation uses until `end`.

    Attributes:
        cache: to run the model with.
        cached_tokens: tokens of the prompt that it holds.
    """

    def __init__(self, owner: PromptCache | None, cache: Any, cached_tokens: int) -> None:
        self.cache = cache
        self.cached_tokens = cached_tokens
        self._owner = owner

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """To be held while a step runs: others free pages of the pool."""
        return nullcontext() if self._owner is None else self._owner._lock

    def make_room(self) -> bool:
        """Free the pages of a kept sequence, after a step that did not fit; False when there is none any more."""
        return self._owner is not None and self._owner.free_oldest()

    def end(self, tokens: Sequence[int]) -> None:
        """Give the cache back, once, with all tokens that were run, the cached ones included."""
        owner, self._owner = self._owner, None
        if owner is not None:
            owner._take_back(self.cache, tokens)


def _shortest(cache: KtitanCache) -> int:
    """Tokens that every layer of a cache of one row holds."""
    return min(
        (cache.pool.length(layer, *cache.sequences) for layer in cache.pool.layers() if cache.sequences), default=0
    )


def _common(kept: torch.Tensor, prompt: torch.Tensor) -> int:
    """Tokens that both [S] begin with."""
    length = min(kept.shape[0], prompt.shape[0])
    differs = (kept[:length] != prompt[:length]).nonzero()
    return int(differs[0]) if differs.shape[0] else length


def _refusal(model: Any) -> str | None:
    """Why the keys and values of a prompt's beginning are not those of the beginning alone, or cannot be cut off."""
    if getattr(model, "_is_stateful", False):
        return f"{type(model).__name__} keeps a running state, which cannot be taken back to an earlier token"
    if not isinstance(new_cache(model), KtitanCache):
        return f"the layers of {type(model).__name__} keep more than keys and values"
    kinds = _rope_types(model.config.get_text_config(decoder=True))
    by_length = sorted(kinds.intersection(_BY_LENGTH))
    if by_length:
        return f"rotary embeddings of type {by_length[0]} depend on the length of the sequence"
    return None


def _rope_types(config: Any) -> set[str]:
    """Types of rotary embedding that a config names, for the model or for kinds of layers."""
    found: set[str] = set()
    for name in ("rope_parameters", "rope_scaling"):
        parameters = getattr(config, name, None)
        for part in [parameters, *parameters.values()] if isinstance(parameters, dict) else []:
            if isinstance(part, dict):
                found.update(str(part[key]) for key in ("rope_type", "type") if key in part)
    return found
