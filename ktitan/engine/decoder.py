"""One sequence on its way through the model: by the model's step program where it has one, else by its modules."""

from __future__ import annotations

import inspect
import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ktitan.context import step
from ktitan.engine.cache import KtitanCache
from ktitan.engine.kv_native import NativeKVPool
from ktitan.engine.sampling import Sampler
from ktitan.engine.stats import GenerationStats
from ktitan.engine.steps import Token, score_token
from ktitan.errors import BudgetError, UnsupportedError
from ktitan.native.decoding import NOT_READY, UNSURE

if TYPE_CHECKING:
    from ktitan.engine.prompt_cache import Loan

__all__ = ["Decoder", "StepProgram", "cache_keyword"]

# The KV argument of a model's forward: the first since transformers 5.24, the second before, the third for Mamba then.
CACHE_KEYWORDS = ("cache", "past_key_values", "cache_params")


class StepProgram(Protocol):
    """What `model.ktitan.program` is: the whole forward pass of a model as one call."""

    def run(self, ids: torch.Tensor, cache: KtitanCache) -> torch.Tensor:
        """Logits [1, V] that follow the last of `ids` [T] int64, which come after what `cache` holds.

        Raises:
            BudgetError: the pages would pass the pool's budget; nothing was changed.
        """


def cache_keyword(model: torch.nn.Module) -> str:
    """The name under which `model.forward` takes the KV cache.

    Raises:
        UnsupportedError: it takes none under a known name.
    """
    parameters = inspect.signature(model.forward).parameters
    name = next((name for name in CACHE_KEYWORDS if name in parameters), None)
    if name is None:
        message = f"{type(model).__name__}.forward takes none of {', '.join(CACHE_KEYWORDS)}"
        raise UnsupportedError(message, remedy="use model.generate() for this model")
    return name


class Decoder:
    """Runs the model over one sequence and times it.

    Args:
        model: causal language model of transformers, stock or injected.
        sampler: chooses tokens.
        stats: counts and times.
        likeliest: see `generate_steps`.

    Attributes:
        seen: tokens that were run, the cached ones included.
    """

    def __init__(self, model: Any, sampler: Sampler, stats: GenerationStats, likeliest: int | None) -> None:
        self.stats = stats
        self.seen = 0
        self._model = model
        self._sampler = sampler
        self._likeliest = likeliest
        self._device = model.device
        self._arguments: dict[str, Any] = {"use_cache": True}
        self._keyword = cache_keyword(model)
        takes = inspect.signature(model.forward).parameters
        self._takes_positions = "position_ids" in takes
        if "logits_to_keep" in takes:
            self._arguments["logits_to_keep"] = 1
        self._cache: Any = None
        self._pool: Any = None
        self._program: StepProgram | None = None
        self._loan: Loan | None = None
        self._decoding: Any = None  # of the program, from the first step of one token on
        self._goes_on = False  # whether to ask for it
        self._lock: AbstractContextManager[Any] = nullcontext()
        self._tokens: list[int] = []  # what was run, and what is to be run next

    @property
    def is_lent(self) -> bool:
        """Whether the cache is lent, so that the caller could not know what it holds."""
        return self._loan is not None

    def begin(self, prompt: torch.Tensor, cache: Any, cached_tokens: int) -> None:
        """Go on from the first `cached_tokens` of `prompt` [S], which `cache` holds."""
        self._cache = cache
        self._tokens = prompt.tolist()
        self.seen = self.stats.cached_tokens = cached_tokens
        self._arguments[self._keyword] = cache
        if isinstance(cache, KtitanCache):
            self._pool = cache.pool
        if isinstance(self._pool, NativeKVPool):
            # None too while the modules do more than the program: hooks, a recording, an adapter of somebody else's.
            self._program = getattr(getattr(self._model, "ktitan", None), "program", None)
        self._goes_on = self._program is not None

    def begin_with(self, loan: Loan, prompt: torch.Tensor) -> None:
        """Go on from what the cache of `loan` holds of `prompt` [S]."""
        self._loan, self._lock = loan, loan.lock
        self.begin(prompt, loan.cache, loan.cached_tokens)

    def end(self) -> None:
        """Nothing more is run: what was lent goes back, also after a step that failed or was interrupted."""
        if self._loan is not None:
            self._loan.end(self._tokens[: self.seen])

    def read(self, chunk: torch.Tensor) -> torch.Tensor:
        """Run a chunk [T] of the prompt; the logits [1, V] after it."""
        started = time.perf_counter()
        logits = self._forward(chunk)
        self.stats.prompt_tokens += chunk.shape[0]
        self.stats.prefill_seconds += time.perf_counter() - started
        return logits

    def first(self, logits: torch.Tensor) -> Token:
        """Choose the token after the prompt."""
        started = time.perf_counter()
        token = self._choose(logits)
        self.stats.prefill_seconds += time.perf_counter() - started
        return token

    def next(self, token: Token) -> Token:
        """Run one token and choose the next."""
        started = time.perf_counter()
        self._tokens.append(token.id)
        chosen = self._at_once(token.id) if self._goes_on else self._choose(self._forward(torch.tensor((token.id,))))
        self.stats.decode_steps += 1
        self.stats.decode_seconds += time.perf_counter() - started
        return chosen

    def _begin_decoding(self) -> Any:
        begin = getattr(self._program, "decoding", None)
        choice = self._sampler.native if self._likeliest is None else None
        return None if begin is None else begin(self._cache, choice)

    def _at_once(self, token: int) -> Token:
        """Run `token` and choose the next in one native call; by `_forward` where pages are needed, or at an error."""
        decoding, sampler = self._decoding, self._sampler
        if decoding is None:
            decoding = self._decoding = self._begin_decoding()
            if decoding is None:
                self._goes_on = False
                return self._choose(self._forward(torch.tensor((token,))))
        uniform = sampler.draw()
        with self._lock:
            chosen = decoding.next(token, self.seen, uniform)
        if chosen == NOT_READY:
            logits = self._forward(torch.tensor((token,)))
            decoding.refresh()
            return self._choose(logits, uniform)
        self.seen += 1
        if chosen == UNSURE:
            return self._choose(decoding.logits, uniform)
        sampler.note(chosen)
        return Token(chosen)

    def _choose(self, logits: torch.Tensor, uniform: float | None = None) -> Token:
        sampler = self._sampler
        token = sampler(logits) if uniform is None else sampler.choose(logits, uniform)
        return Token(token) if self._likeliest is None else score_token(logits, token, self._likeliest)

    def _forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits [1, V] that follow the last of `ids` [T]; prompts that are kept make room where the step needs it."""
        loan = self._loan
        if loan is None:
            logits = self._run(ids)
        else:
            with loan.lock:
                logits = self._run_within(ids, loan)
        self.seen += ids.shape[0]
        if self._pool is not None:
            self.stats.kv_bytes = getattr(self._pool, "allocated_bytes", 0)
        return logits

    def _run_within(self, ids: torch.Tensor, loan: Loan) -> torch.Tensor:
        while True:
            try:
                return self._run(ids)
            except BudgetError:
                if not loan.make_room():
                    raise

    @torch.inference_mode()
    def _run(self, ids: torch.Tensor) -> torch.Tensor:
        if self._program is not None:
            return self._program.run(ids, self._cache)
        arguments, tokens = self._arguments, ids.shape[0]
        if self._takes_positions:  # as stock generate does; some models compute otherwise without them
            positions = torch.arange(self.seen, self.seen + tokens, device=self._device)[None]
            arguments = {**arguments, "position_ids": positions}
        # The pages of the step are reserved before it runs.
        with nullcontext() if self._pool is None else step(self._cache.step_context(tokens)):
            logits: torch.Tensor = self._model(input_ids=ids[None].to(self._device), **arguments).logits
        return logits[:, -1, :]
