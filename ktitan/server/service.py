"""What all routes share: the model and its names, the engine, the limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from ktitan.api import PromptCache, context_tokens, encode_text, end_ids
from ktitan.server.engine import Engine
from ktitan.server.errors import ApiError
from ktitan.server.limits import Context
from ktitan.server.metrics import Metrics
from ktitan.server.options import ServerOptions
from ktitan.server.reasoning import thinks
from ktitan.server.stream_metrics import StreamMetrics
from ktitan.server.tiers import Tiers
from ktitan.server.tokens import TokenBytes

__all__ = ["ALIASES", "Service", "model_id"]

ALIASES = ("titan", "ktitan", "default")

ResultT = TypeVar("ResultT")


def model_id(name: str) -> str:
    """What a model calls itself: the name of its folder or file, or a hub id as it is."""
    path = Path(name)
    is_hub_id = len(path.parts) == 2 and not path.is_absolute() and not path.exists()
    return name if is_hub_id or not path.name else path.name.removesuffix(".gguf")


class Service:
    """One model and everything that serves it.

    Args:
        model: causal language model of transformers, stock or injected.
        tokenizer: its tokenizer.
        name: MODEL as the user called it.
        options: what the server was asked for.
    """

    def __init__(self, model: Any, tokenizer: Any, name: str, options: ServerOptions) -> None:
        self.tokenizer = tokenizer
        self.options = options
        self.id = model_id(name)
        self.context = Context(lambda: context_tokens(model, options.context_tokens))
        self.generation_config = getattr(model, "generation_config", None)
        self.end_ids = end_ids(model, tokenizer)
        self._vocabulary = getattr(model.config.get_text_config(decoder=True), "vocab_size", None)
        self.thinks = thinks(tokenizer)
        self.token_bytes = TokenBytes(tokenizer)
        self.metrics = Metrics()
        self.prompt_cache = PromptCache(model) if options.prompt_cache else None
        self.engine = Engine(
            model, tokenizer, options.queue_limit, options.chunk_tokens, self.metrics, self.prompt_cache
        )
        self.tiers = Tiers(model, self.engine)
        self._names = {self.id, name, *ALIASES}
        # One thread encodes, and encodes once now: a tokenizer drops a stored truncation at its first call, which must
        # not happen while the model's thread decodes.
        tokenizer("warm up")
        self._encoder = ThreadPoolExecutor(1, thread_name_prefix="ktitan-encode")
        self._add_gauges()

    def check_name(self, asked: str | None) -> None:
        """Refuse models that are not here; a request that names none gets the one there is.

        Raises:
            ApiError: 404.
        """
        if asked is not None and asked not in self._names:
            message = f"there is no model {asked!r} here; this server has {self.id!r}, also called {', '.join(ALIASES)}"
            raise ApiError(404, message, "model", "model_not_found")

    def check_ids(self, field: str, ids: Iterable[int]) -> None:
        """Refuse token ids that the model does not have, before anything is queued.

        Raises:
            ApiError: 400.
        """
        wrong = next((one for one in ids if self._vocabulary and one >= self._vocabulary), None)
        if wrong is not None:
            raise ApiError(400, f"token id {wrong} is not among the model's {self._vocabulary}", field, "invalid_value")

    def check_text(self, field: str, text: str) -> None:
        """Refuse a text that is far too long, before all of it is encoded; see `Context.check_text`.

        Raises:
            ApiError: 400.
        """
        self.context.check_text(text, lambda part: len(encode_text(self.tokenizer, part)), field)

    async def encode(self, work: Callable[[], ResultT]) -> ResultT:
        """The result of `work`, which uses the tokenizer, without holding up the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._encoder, work)

    def close(self) -> None:
        """End the threads; the engine has been closed."""
        self._encoder.shutdown(wait=False, cancel_futures=True)

    def _add_gauges(self) -> None:
        engine = self.engine
        self.metrics.gauge("ktitan_queue_length", "Requests that wait.", lambda: len(engine.queue))
        self.metrics.gauge("ktitan_running", "Requests that run.", lambda: engine.running is not None)
        kept = self.prompt_cache
        if kept is not None:
            self.metrics.gauge("ktitan_prompt_cache_prompts", "Conversations that are kept.", lambda: len(kept))
            self.metrics.gauge("ktitan_prompt_cache_bytes", "Bytes of their pages.", lambda: kept.used_bytes)
        self.metrics.tier_gauge("ktitan_tier_used_bytes", "Bytes used.", lambda: self.tiers.column("used_bytes"))
        self.metrics.tier_gauge("ktitan_tier_budget_bytes", "Bytes allowed.", lambda: self.tiers.column("budget_bytes"))
        self.metrics.tier_gauge(
            "ktitan_tier_cache_bytes", "Cache of streams.", lambda: self.tiers.column("cache_bytes")
        )
        self.metrics.tier_gauge(
            "ktitan_tier_read_bytes_per_second", "Rate of reads.", lambda: self.tiers.column("read_bytes_per_second")
        )
        self.metrics.add(StreamMetrics(self.tiers.streaming.counters))
