"""The shapes of answers: OpenAI's chat completions and its older text completions, whole and in chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from ktitan.server.events import Delta, Done, Event, Finish, ScoredToken, Usage
from ktitan.server.tokens import TokenBytes

__all__ = ["ChatForm", "CompletionForm", "Form"]


class Form(Protocol):
    """How events become objects for the wire."""

    id: str

    def opening(self) -> list[dict[str, Any]]:
        """Chunks that come before anything is computed."""

    def delta(self, delta: Delta) -> dict[str, Any]:
        """A chunk with more of an answer."""

    def finish(self, finish: Finish) -> dict[str, Any]:
        """A chunk that ends an answer."""

    def usage(self, usage: Usage) -> dict[str, Any]:
        """The last chunk, with no choices."""

    def whole(self, events: Sequence[Event]) -> dict[str, Any]:
        """All answers at once."""


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


class _BaseForm:
    """The frame of every object.

    Args:
        model: the model's own id.
        count: answers.
        token_bytes: looks up tokens.
        scores: log probabilities are wanted.
        usage_last: a stream ends with its usage, so every chunk before it says null.
    """

    prefix, kind, chunk_kind = "", "", ""

    def __init__(self, model: str, count: int, token_bytes: TokenBytes, scores: bool, usage_last: bool) -> None:
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"
        self._model = model
        self._count = count
        self._tokens = token_bytes
        self._scores = scores
        self._usage_last = usage_last
        self._created = int(time.time())

    def usage(self, usage: Usage) -> dict[str, Any]:
        """The last chunk, with no choices."""
        return {**self._frame(self.chunk_kind), "choices": [], "usage": _usage(usage)}

    def _frame(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self._created, "model": self._model}

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk = {**self._frame(self.chunk_kind), "choices": [choice]}
        return {**chunk, "usage": None} if self._usage_last else chunk

    def _whole(self, choices: list[dict[str, Any]], events: Sequence[Event]) -> dict[str, Any]:
        done = next(event for event in events if isinstance(event, Done))
        return {**self._frame(self.kind), "choices": choices, "usage": _usage(done.usage)}

    def _answers(self, events: Sequence[Event]) -> Iterable[tuple[Delta, str]]:
        """Each answer in one piece, with the reason of its end."""
        for index in range(self._count):
            deltas = [event for event in events if isinstance(event, Delta) and event.index == index]
            joined = Delta(
                index,
                "".join(delta.text for delta in deltas),
                "".join(delta.reasoning for delta in deltas),
                tuple(token for delta in deltas for token in delta.tokens),
            )
            reason = next(event.reason for event in events if isinstance(event, Finish) and event.index == index)
            yield joined, reason


class ChatForm(_BaseForm):
    """chat.completion and chat.completion.chunk."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def opening(self) -> list[dict[str, Any]]:
        """The role, for each answer."""
        return [self._delta(index, {"role": "assistant", "content": ""}) for index in range(self._count)]

    def delta(self, delta: Delta) -> dict[str, Any]:
        """Text, reasoning, or both; the older name `reasoning` is not sent."""
        parts = {"reasoning_content": delta.reasoning, "content": delta.text}
        shown = {name: text for name, text in parts.items() if text} or {"content": ""}
        return self._delta(delta.index, shown, delta.tokens)

    def finish(self, finish: Finish) -> dict[str, Any]:
        """An empty delta with the reason."""
        return self._delta(finish.index, {}, reason=finish.reason)

    def whole(self, events: Sequence[Event]) -> dict[str, Any]:
        """The completion."""
        choices = []
        for answer, reason in self._answers(events):
            message = {"role": "assistant", "content": answer.text, "refusal": None}
            if answer.reasoning:
                message["reasoning_content"] = answer.reasoning
            logprobs = self._logprobs(answer.tokens) if self._scores else None
            choices.append({"index": answer.index, "message": message, "logprobs": logprobs, "finish_reason": reason})
        return self._whole(choices, events)

    def _delta(
        self, index: int, delta: dict[str, Any], tokens: Sequence[ScoredToken] = (), reason: str | None = None
    ) -> dict[str, Any]:
        logprobs = self._logprobs(tokens) if tokens else None
        return self._chunk({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason})

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> dict[str, Any]:
        content = [
            {**self._scored(one.id, one.logprob), "top_logprobs": [self._scored(*pair) for pair in one.likeliest]}
            for one in tokens
        ]
        return {"content": content, "refusal": None}

    def _scored(self, token_id: int, logprob: float) -> dict[str, Any]:
        raw = list(self._tokens.bytes_of(token_id))
        return {"token": self._tokens.text_of(token_id), "logprob": finite(logprob), "bytes": raw}


class CompletionForm(_BaseForm):
    """text_completion, whole and in chunks."""

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def __init__(
        self,
        model: str,
        count: int,
        token_bytes: TokenBytes,
        scores: bool,
        usage_last: bool,
        echoes: Sequence[str] = (),
    ) -> None:
        super().__init__(model, count, token_bytes, scores, usage_last)
        self._echoes = echoes
        self._offsets = [len(echo) for echo in echoes] or [0] * count

    def opening(self) -> list[dict[str, Any]]:
        """The prompts, where they are to be echoed."""
        return [self._text(index, echo) for index, echo in enumerate(self._echoes)]

    def delta(self, delta: Delta) -> dict[str, Any]:
        """More text."""
        return self._text(delta.index, delta.text, delta.tokens)

    def finish(self, finish: Finish) -> dict[str, Any]:
        """No text, and the reason."""
        return self._text(finish.index, "", reason=finish.reason)

    def whole(self, events: Sequence[Event]) -> dict[str, Any]:
        """The completion."""
        choices = []
        for answer, reason in self._answers(events):
            text = (self._echoes[answer.index] if self._echoes else "") + answer.text
            logprobs = self._logprobs(answer.index, answer.tokens) if self._scores else None
            choices.append({"index": answer.index, "text": text, "logprobs": logprobs, "finish_reason": reason})
        return self._whole(choices, events)

    def _text(
        self, index: int, text: str, tokens: Sequence[ScoredToken] = (), reason: str | None = None
    ) -> dict[str, Any]:
        logprobs = self._logprobs(index, tokens) if tokens else None
        return self._chunk({"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason})

    def _logprobs(self, index: int, tokens: Sequence[ScoredToken]) -> dict[str, Any]:
        texts = [self._tokens.text_of(one.id) for one in tokens]
        offsets = []
        for one in tokens:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(self._tokens.bytes_of(one.id).decode(errors="ignore"))
        tops = [{self._tokens.text_of(i): finite(p) for i, p in one.likeliest} for one in tokens]
        return {
            "tokens": texts,
            "token_logprobs": [finite(one.logprob) for one in tokens],
            "top_logprobs": tops,
            "text_offset": offsets,
        }


def finite(logprob: float) -> float:
    """JSON has no infinity: OpenAI writes -9999 for a token that cannot come."""
    return max(logprob, -9999.0)
