"""Splits `<think>reasoning</think>answer` while it arrives, however the pieces are cut."""

from __future__ import annotations

from enum import Enum
from typing import Any

__all__ = ["CLOSE", "OPEN", "ReasoningSplit", "opens_reasoning", "thinks"]

OPEN, CLOSE = "<think>", "</think>"


def thinks(tokenizer: Any) -> bool:
    """Whether the model marks its reasoning: its template or its vocabulary knows the closing tag."""
    return CLOSE in str(tokenizer.chat_template or "") or CLOSE in tokenizer.get_added_vocab()


def opens_reasoning(prompt: str) -> bool:
    """Whether a rendered prompt ends with an opening tag, so that the answer begins inside the reasoning."""
    return prompt.rstrip().endswith(OPEN)


class _State(Enum):
    START = "start"
    REASONING = "reasoning"
    AFTER = "after"
    ANSWER = "answer"


class ReasoningSplit:
    """Text in, (reasoning, answer) out. White space around the tags belongs to neither.

    Reasoning is what stands between an opening tag at the very start, or in the prompt, and the first closing tag;
    any later tag is text of the answer.

    Args:
        opened: the prompt ends with the opening tag.
    """

    def __init__(self, opened: bool) -> None:
        self._state = _State.START
        self._otherwise = _State.REASONING if opened else _State.ANSWER
        self._held = ""
        self._begun = False

    @property
    def is_reasoning(self) -> bool:
        """Whether the next text is reasoning, as far as can be told."""
        return self._state is _State.REASONING or (self._state, self._otherwise) == (_State.START, _State.REASONING)

    def push(self, piece: str) -> tuple[str, str]:
        """What is certain now."""
        self._held += piece
        if self._state is _State.START and not self._pass_start():
            return "", ""
        reasoning = self._take_reasoning() if self._state is _State.REASONING else ""
        if self._state is _State.AFTER:
            self._held = self._held.lstrip()
            self._state = _State.ANSWER if self._held else _State.AFTER
        answer = ""
        if self._state is _State.ANSWER:
            answer, self._held = self._held, ""
        return reasoning, answer

    def finish(self) -> tuple[str, str]:
        """What was held back."""
        held, self._held = self._held, ""
        if self.is_reasoning:
            return (held if self._begun else held.lstrip()).rstrip(), ""
        return "", held if self._state is not _State.AFTER else ""

    def _pass_start(self) -> bool:
        """Whether it is clear now how the text begins."""
        begun = self._held.lstrip()
        if begun.startswith(OPEN):
            self._held, self._state = begun[len(OPEN) :], _State.REASONING
        elif OPEN.startswith(begun):
            return False
        else:
            self._state = self._otherwise
        return True

    def _take_reasoning(self) -> str:
        text = self._held if self._begun else self._held.lstrip()
        end = text.find(CLOSE)
        if end >= 0:
            self._state, self._held = _State.AFTER, text[end + len(CLOSE) :]
            return text[:end].rstrip()
        tag = next(size for size in range(len(CLOSE) - 1, -1, -1) if text.endswith(CLOSE[:size]))
        ready = text[: len(text) - tag].rstrip()
        self._begun, self._held = self._begun or bool(ready), text[len(ready) :]
        return ready
