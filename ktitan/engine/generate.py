"""The generation loop for one sequence: chunked prefill, then one token a step, with any causal model of transformers.

Shape letters: T tokens of a step, S tokens of the sequence, V vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache

from ktitan.engine.cache import KtitanCache
from ktitan.engine.conversation import encode_rendered, encode_text, render_messages
from ktitan.engine.decoder import Decoder, cache_keyword
from ktitan.engine.detokenize import Detokenizer, StopStrings
from ktitan.engine.kv_choice import pool_maker
from ktitan.engine.sampling import Sampler, Sampling
from ktitan.engine.stats import GenerationStats
from ktitan.engine.steps import PromptProgress, Step, Token
from ktitan.errors import UnsupportedError
from ktitan.kv_formats import AS_COMPUTED

if TYPE_CHECKING:
    from ktitan.engine.prompt_cache import PromptCache

__all__ = ["GenerationStats", "cache_keyword", "end_ids", "generate_steps", "generate_tokens", "new_cache", "stream"]

log = logging.getLogger("ktitan.engine.generate")

# Tokens of a prompt in one forward pass of a model without a plan.
STOCK_CHUNK_TOKENS = 512


def new_cache(model: Any) -> Any:
    """An empty cache for one sequence: ktitan's pages within the model's budget, or transformers' own, without a limit,
    for layers that keep a running state.

    Raises:
        UnsupportedError, HardwareError: the model was loaded with a KV format that its layers cannot have.
    """
    handle = getattr(model, "ktitan", None)
    budget = getattr(handle, "kv_allowance", None)
    kv = getattr(getattr(handle, "plan", None), "kv_format", AS_COMPUTED)
    try:
        return KtitanCache(config=model.config, budget_bytes=budget, make_pool=pool_maker(model, kv))
    except UnsupportedError as error:
        if kv != AS_COMPUTED:
            raise
        log.info("transformers' cache is used: %s", error.message)
        return DynamicCache(config=model.config)


def end_ids(model: Any, tokenizer: Any = None) -> frozenset[int]:
    """All ids that end an answer: those of generation_config, of config and the tokenizer's own, together."""
    text_config = model.config.get_text_config(decoder=True)
    holders = (getattr(model, "generation_config", None), model.config, text_config, tokenizer)
    ends: set[int] = set()
    for holder in holders:
        value = getattr(holder, "eos_token_id", None)
        ends.update([value] if isinstance(value, int) else value or ())
    return frozenset(ends)


def generate_tokens(
    model: Any,
    input_ids: torch.Tensor | Sequence[int],
    *,
    max_new_tokens: int,
    sampling: Sampling | None = None,
    eos_ids: Iterable[int] = (),
    ignore_eos: bool = False,
    chunk_tokens: int | None = None,
    cache: Any = None,
    prompt_cache: PromptCache | None = None,
    context_tokens: int | None = None,
    stats: GenerationStats | None = None,
) -> Generator[int, None, None]:
    """Ids that follow `input_ids`, each as soon as it is chosen; the end mark is not handed out.

    The arguments are checked at the call, the model runs while the iterator is read, and never ahead of it.

    Args:
        model: causal language model of transformers, stock or injected.
        input_ids: the whole sequence so far, [S] or [1, S] int64.
        max_new_tokens: at most so many ids, >= 1; fewer when the context is full.
        sampling: how to choose; None is greedy.
        eos_ids: ids that end the sequence.
        ignore_eos: go on after an end id, which is then handed out like any other.
        chunk_tokens: tokens of the prompt in one forward pass; None: as planned (`plan.chunk_tokens`), 512 for a stock
            model. Models that keep a running state get it in one pass, since their stock code restarts the state at
            every pass of more than one token.
        cache: may hold the keys and values of the first tokens of `input_ids`, but not of the last one.
        prompt_cache: gives the keys and values of the tokens that an earlier generation shares, and keeps these.
        context_tokens: most tokens of prompt and answer together; None: the model's positions.
        stats: filled with counts and times.

    Raises:
        UnsupportedError: an argument is out of its range, or the prompt is longer than the model's positions or
            `context_tokens`.
    """
    steps = generate_steps(
        model,
        input_ids,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        eos_ids=eos_ids,
        ignore_eos=ignore_eos,
        chunk_tokens=chunk_tokens,
        cache=cache,
        prompt_cache=prompt_cache,
        context_tokens=context_tokens,
        stats=stats,
    )
    return _ids(steps)


def _ids(steps: Generator[Step, None, None]) -> Generator[int, None, None]:
    with closing(steps):
        for step in steps:
            if isinstance(step, Token):
                yield step.id


def _told(
    steps: Generator[Step, None, None], on_prompt: Callable[[int, int], None], start: tuple[int, int] | None
) -> Generator[Step, None, None]:
    """`steps`, while `on_prompt` hears of the prompt's; of its `start` where they do not tell."""
    with closing(steps):
        if start is not None:
            on_prompt(*start)
        for step in steps:
            if isinstance(step, PromptProgress):
                on_prompt(step.done_tokens, step.total_tokens)
            yield step


def generate_steps(
    model: Any,
    input_ids: torch.Tensor | Sequence[int],
    *,
    max_new_tokens: int,
    sampling: Sampling | None = None,
    eos_ids: Iterable[int] = (),
    ignore_eos: bool = False,
    chunk_tokens: int | None = None,
    cache: Any = None,
    prompt_cache: PromptCache | None = None,
    context_tokens: int | None = None,
    stats: GenerationStats | None = None,
    likeliest: int | None = None,
) -> Generator[Step, None, None]:
    """As `generate_tokens`, with log probabilities, and a `PromptProgress` after each chunk of the prompt: the caller
    can look after other things, or leave, between any two forward passes.

    Args:
        likeliest: give each token its log probability and so many likeliest ones, >= 0; None computes none.

    Raises:
        UnsupportedError: as `generate_tokens`.
    """
    prompt = _prompt_row(input_ids, _vocabulary(model))[0]
    _check_bias(model, sampling)
    chunk_tokens = _planned_chunk(model) if chunk_tokens is None else chunk_tokens
    for name, value in (("max_new_tokens", max_new_tokens), ("chunk_tokens", chunk_tokens)):
        if not isinstance(value, int) or value < 1:
            raise UnsupportedError(f"{name} is {value!r}", name, "give a whole number from 1 on")
    room = _room(model, prompt.shape[0], context_tokens)
    limit = _Limit(max_new_tokens, "length") if max_new_tokens <= room else _Limit(room, "context")
    sampler = Sampler(sampling or Sampling(greedy=True), prompt.tolist())
    decoder = Decoder(model, sampler, GenerationStats() if stats is None else stats, likeliest)
    begin = _beginning(decoder, model, prompt, cache, prompt_cache)
    chunk = prompt.shape[0] if getattr(model, "_is_stateful", False) else chunk_tokens
    return _steps(decoder, prompt, begin, chunk, frozenset() if ignore_eos else frozenset(eos_ids), limit)


def _beginning(
    decoder: Decoder, model: Any, prompt: torch.Tensor, cache: Any, prompt_cache: PromptCache | None
) -> Callable[[], None]:
    """Hands the decoder its cache, at the first step: a loan that is never begun would not be ended."""
    if prompt_cache is not None:
        if cache is not None:
            raise UnsupportedError("a cache and a prompt cache are given", "cache", "give one of them")
        prompt_cache.check_model(model)
        return lambda: decoder.begin_with(prompt_cache.lend(prompt), prompt)
    cached = 0 if cache is None else int(cache.get_seq_length())  # a running state has no length to ask for
    if cached >= prompt.shape[0]:
        message = f"the cache holds {cached} tokens, but the prompt has only {prompt.shape[0]}"
        raise UnsupportedError(message, "cache", "crop the cache, or pass the whole sequence as input_ids")
    return lambda: decoder.begin(prompt, new_cache(model) if cache is None else cache, cached)


@dataclass(frozen=True)
class _Limit:
    """So many tokens at most, and what it means when they are reached."""

    tokens: int
    reason: str


def _steps(
    decoder: Decoder,
    prompt: torch.Tensor,
    begin: Callable[[], None],
    chunk_tokens: int,
    ends: frozenset[int],
    limit: _Limit,
) -> Generator[Step, None, None]:
    """The steps from the prompt [S] on; `begin` gives the decoder its cache."""
    stats = decoder.stats
    stats.stop_reason, reason = "", "closed"
    try:
        begin()
        if decoder.is_lent:
            yield PromptProgress(decoder.seen, prompt.shape[0])
        for chunk in prompt[decoder.seen :].split(chunk_tokens):
            logits = decoder.read(chunk)
            yield PromptProgress(decoder.seen, prompt.shape[0])
        token = decoder.first(logits)
        for left in range(limit.tokens - 1, -1, -1):
            if token.id in ends:
                reason = "stop"
                return
            stats.new_tokens += 1
            yield token
            if left:
                token = decoder.next(token)
        reason = limit.reason
    finally:
        decoder.end()
        stats.stop_reason = reason


def _prompt_row(input_ids: torch.Tensor | Sequence[int], vocabulary: int | None) -> torch.Tensor:
    """`input_ids` as [1, S] int64 on the CPU; all are ids of the vocabulary, where its size is known."""
    remedy = "give one sequence of at least one token"
    try:
        given = torch.as_tensor(input_ids, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise UnsupportedError(f"input_ids are no list of token ids: {error}", "input_ids", remedy) from error
    row = given.unsqueeze(0) if given.dim() == 1 else given
    if row.dim() != 2 or row.shape[0] != 1 or row.shape[1] == 0:
        raise UnsupportedError(f"input_ids have shape {tuple(row.shape)}", "input_ids", remedy)
    if row.is_floating_point() or row.is_complex():
        raise UnsupportedError(f"input_ids are {row.dtype}, not whole numbers", "input_ids", remedy)
    row = row.to(torch.int64)
    beyond = row[(row < 0) | (row >= vocabulary)] if vocabulary is not None else row[:0]
    if beyond.numel():
        raise UnsupportedError(
            f"token {int(beyond[0])} is none of the embedding's {vocabulary} rows",
            "input_ids",
            "use the tokenizer of this model, and no token that was added to it",
        )
    return row


def _planned_chunk(model: Any) -> int:
    plan = getattr(getattr(model, "ktitan", None), "plan", None)
    return int(getattr(plan, "chunk_tokens", STOCK_CHUNK_TOKENS))


def _vocabulary(model: Any) -> int | None:
    size = getattr(model.config.get_text_config(decoder=True), "vocab_size", None)
    return size if isinstance(size, int) else None


def _check_bias(model: Any, sampling: Sampling | None) -> None:
    """Ids outside the vocabulary would be an index error deep in the sampler."""
    size = _vocabulary(model)
    if size is None:
        return
    beyond = [one for one in (sampling.logit_bias if sampling else ()) if not 0 <= one < size]
    if beyond:
        message = f"token {beyond[0]} is none of the {size} of the vocabulary"
        raise UnsupportedError(message, "logit_bias", f"give ids from 0 to {size - 1}")


def _room(model: Any, prompt_tokens: int, context_tokens: int | None) -> int:
    """How many tokens may follow the prompt before the model's positions, or those that were asked for, run out."""
    positions = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    limits = {"max_position_embeddings": positions or 2**63, "context_tokens": context_tokens or 2**63}
    where, most = min(limits.items(), key=lambda limit: limit[1])
    if prompt_tokens >= most:
        has = "the model has positions" if where == "max_position_embeddings" else "there is room"
        raise UnsupportedError(
            f"the prompt has {prompt_tokens} tokens, but {has} for {most} with the answer",
            where=where,
            remedy="shorten the prompt or start a new conversation",
        )
    return most - prompt_tokens


def stream(
    model: Any,
    tokenizer: Any,
    messages_or_text: str | Sequence[dict[str, Any]],
    *,
    max_new_tokens: int = 512,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    seed: int | None = None,
    greedy: bool | None = None,
    ignore_eos: bool = False,
    stop: str | Sequence[str] = (),
    opening: str = "",
    chunk_tokens: int | None = None,
    cache: Any = None,
    prompt_cache: PromptCache | None = None,
    context_tokens: int | None = None,
    stats: GenerationStats | None = None,
    on_prompt: Callable[[int, int], None] | None = None,
) -> Generator[str, None, None]:
    """Pieces of the answer's text as they become certain; closing the iterator ends the work at once.

    A list of messages (`{"role": ..., "content": ...}`) goes through the tokenizer's chat template; where there is none
    the contents are joined by newlines and continued. A string is continued as plain text, without a template.
    Sampling options that are None come from the model's generation_config (see `Sampling.resolve`).

    Args:
        model: causal language model of transformers, stock or injected.
        tokenizer: the model's tokenizer.
        messages_or_text: conversation or plain text.
        max_new_tokens: at most so many tokens; fewer when the context is full (`stats.stop_reason`).
        temperature, top_p, top_k, min_p, repetition_penalty, seed, greedy: see `Sampling`.
        ignore_eos: go on after the model's end marks.
        stop: strings before whose first occurrence in the answer the text ends.
        opening: text that the answer begins with, e.g. "<think>"; the model goes on from there. Nothing is done
            where the chat template writes it already.
        chunk_tokens: tokens of the prompt in one forward pass; None: as planned.
        cache, prompt_cache, context_tokens: see `generate_tokens`.
        stats: filled with counts and times.
        on_prompt: called with (tokens run, tokens of the prompt) before the prompt and after each chunk of it; what
            it raises ends the work.

    Raises:
        UnsupportedError: messages, options or the prompt's length are refused; at the call, not at the first piece.
    """
    prompt, opening = _opened_prompt(tokenizer, messages_or_text, opening)
    stats = GenerationStats() if stats is None else stats
    sampling = Sampling.resolve(
        getattr(model, "generation_config", None),
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        greedy=greedy,
    )
    steps = generate_steps(
        model,
        prompt,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        eos_ids=end_ids(model, tokenizer),
        ignore_eos=ignore_eos,
        chunk_tokens=chunk_tokens,
        cache=cache,
        prompt_cache=prompt_cache,
        context_tokens=context_tokens,
        stats=stats,
    )
    if on_prompt is not None:
        done = 0 if cache is None else int(cache.get_seq_length())
        steps = _told(steps, on_prompt, None if prompt_cache is not None else (done, len(prompt)))
    pieces = _pieces(_ids(steps), Detokenizer(tokenizer), StopStrings(_stops(stop)), stats)
    return _opened(opening, pieces) if opening else pieces


def _opened_prompt(tokenizer: Any, messages_or_text: Any, opening: str) -> tuple[list[int], str]:
    """Token ids of the prompt with the answer's opening, and the opening if it was put there."""
    if isinstance(messages_or_text, str):
        return encode_text(tokenizer, messages_or_text + opening), opening
    rendered = render_messages(tokenizer, messages_or_text)
    if opening and rendered.rstrip().endswith(opening.strip()):
        opening = ""
    return encode_rendered(tokenizer, rendered + opening), opening


def _opened(opening: str, pieces: Generator[str, None, None]) -> Generator[str, None, None]:
    """The opening goes out with the first piece: before that the prompt is still being read."""
    with closing(pieces):
        for piece in pieces:
            yield opening + piece
            opening = ""
        if opening:
            yield opening


def _stops(stop: str | Sequence[str]) -> tuple[str, ...]:
    """Stop strings as a tuple; none of them may be empty, since that is found everywhere."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop) if isinstance(stop, Iterable) else (stop,)
    if any(not isinstance(text, str) or not text for text in stops):
        raise UnsupportedError(f"{stop!r} is not a stop string", "stop", "give text that is not empty")
    return stops


def _pieces(
    tokens: Generator[int, None, None], detokenizer: Detokenizer, stops: StopStrings, stats: GenerationStats
) -> Generator[str, None, None]:
    """Text pieces of `tokens` up to a stop string; whatever ends this ends `tokens` too."""
    with closing(tokens):
        for token in tokens:
            if piece := stops.push(detokenizer.push(token)):
                yield piece
            if stops.stopped:
                break
        else:
            last = stops.push(detokenizer.finish())
            if piece := last + stops.finish():
                yield piece
    if stops.stopped:
        stats.stop_reason = "stop"
