"""How long a prompt and its answer may be together."""

from __future__ import annotations

from collections.abc import Callable

from ktitan.server.errors import ApiError

__all__ = ["Context"]

# A text of fewer characters for each token of the context is encoded at once; most languages have 3 to 5.
_LIKELY_CHARS = 8
# So many tokens may a text have less than its beginning, which is cut within a word.
_CUT_TOKENS = 64


class Context:
    """The limit of one server; the model's budget may change while it runs."""

    def __init__(self, tokens: Callable[[], int | None]) -> None:
        self._tokens = tokens

    @property
    def tokens(self) -> int | None:
        """Tokens of prompt and answer together; None: no limit is known."""
        return self._tokens()

    def check_text(self, text: str, count: Callable[[str], int], field: str) -> None:
        """Refuse a text that cannot fit by its beginning: encoding ten megabytes takes a minute, and others wait.

        Args:
            text: the prompt.
            count: tokens of a text.
            field: where the prompt came from.

        Raises:
            ApiError: it does not fit. A text that passes may still be too long.
        """
        size = _LIKELY_CHARS * self.tokens if self.tokens is not None else len(text)
        while self.tokens is not None and size < len(text):
            tokens = count(text[:size]) - _CUT_TOKENS
            if tokens >= self.tokens:
                raise self._refusal(f"more than {tokens}", field)
            size *= 4

    def answer_tokens(self, prompt_tokens: int, asked: int | None, field: str) -> int:
        """How long the answer may be: as asked, or what is left.

        Raises:
            ApiError: the prompt leaves no room.
        """
        if self.tokens is None:
            return asked or 2**31 - 1
        if prompt_tokens >= self.tokens:
            raise self._refusal(str(prompt_tokens), field)
        room = self.tokens - prompt_tokens
        return room if asked is None else min(asked, room)

    def _refusal(self, tokens: str, field: str) -> ApiError:
        most = 0 if self.tokens is None else self.tokens - 1
        message = f"the prompt has {tokens} tokens; at most {most} fit, since prompt and answer share {most + 1}"
        return ApiError(400, message, field, "context_length_exceeded")
