"""From tokens to what a client sees: whole characters, no stop strings, reasoning apart from the answer."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from ktitan.api import Detokenizer, Sampling, StopStrings, Token, skipped_ids
from ktitan.server.events import Delta, ScoredToken
from ktitan.server.reasoning import CLOSE, OPEN, ReasoningSplit

__all__ = ["AnswerText", "Choice"]


@dataclass(frozen=True)
class Choice:
    """One answer to make.

    Attributes:
        prompt_ids: the prompt.
        max_new_tokens: longest answer, with the prompt within the context.
        sampling: how tokens are chosen.
        end_ids: ids that end the answer.
        ignore_eos: go on after them.
        stops: strings before which the text ends.
        likeliest: log probabilities with so many alternatives; None for none.
        splits: the model marks its reasoning, which is told apart.
        opened: the prompt ends inside the reasoning.
    """

    prompt_ids: list[int]
    max_new_tokens: int
    sampling: Sampling
    end_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    stops: tuple[str, ...] = ()
    likeliest: int | None = None
    splits: bool = False
    opened: bool = False


@dataclass
class _Pending:
    """Tokens whose text is not out yet, each with the place where its text begins."""

    tokens: deque[tuple[int, ScoredToken]] = field(default_factory=deque)

    def release(self, chars: int) -> tuple[ScoredToken, ...]:
        """The tokens whose text begins before `chars`."""
        released = []
        while self.tokens and self.tokens[0][0] < chars:
            released.append(self.tokens.popleft()[1])
        return tuple(released)


class AnswerText:
    """Makes deltas of one answer.

    Stop strings count in the raw text, reasoning and tags included, as they do in `ktitan.stream`.

    Attributes:
        stopped: a stop string was found; nothing more comes.
        reasoning_tokens: tokens so far that belong to reasoning.
    """

    def __init__(self, tokenizer: Any, choice: Choice, index: int) -> None:
        self.reasoning_tokens = 0
        self._index = index
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(choice.stops)
        self._split = ReasoningSplit(choice.opened) if choice.splits else None
        self._scores = choice.likeliest is not None
        self._tags = _hidden_tags(tokenizer) if choice.splits else {}
        self._pending = _Pending()
        self._made_chars = 0
        self._shown_chars = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended the text."""
        return self._stops.stopped

    def push(self, token: Token) -> Delta | None:
        """What `token` makes certain; None when there is nothing new."""
        if self._scores:
            scored = ScoredToken(token.id, token.logprob, token.likeliest)
            self._pending.tokens.append((self._made_chars, scored))
        if self._split is not None:
            self.reasoning_tokens += self._split.is_reasoning
        tag = self._tags.get(token.id)
        text = self._detokenizer.push(token.id) if tag is None else self._detokenizer.finish() + tag
        self._made_chars += len(text)
        return self._delta(self._stops.push(text), last=self.stopped)

    def finish(self) -> Delta | None:
        """What was held back."""
        if self.stopped:
            return None
        text = self._stops.push(self._detokenizer.finish())
        text += self._stops.finish()
        return self._delta(text, last=True)

    def _delta(self, text: str, last: bool) -> Delta | None:
        self._shown_chars += len(text)
        reasoning, answer = ("", text) if self._split is None else self._split.push(text)
        if last and self._split is not None:
            rest = self._split.finish()
            reasoning, answer = reasoning + rest[0], answer + rest[1]
        whole = last and not self.stopped
        tokens = self._pending.release(self._made_chars + 1 if whole else self._shown_chars) if last or text else ()
        return Delta(self._index, answer, reasoning, tokens) if reasoning or answer or tokens else None


def _hidden_tags(tokenizer: Any) -> dict[int, str]:
    """Ids of the reasoning tags where they are special tokens, which leave no text of their own."""
    known = tokenizer.get_added_vocab()
    hidden = skipped_ids(tokenizer)
    return {known[tag]: tag for tag in (OPEN, CLOSE) if known.get(tag) in hidden}
