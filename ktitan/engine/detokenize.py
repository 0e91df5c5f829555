"""Text from token ids while they arrive: pieces that never cut a character, and stop strings that never leak.

A tokenizer decodes lists, not streams, so each step decodes a short window of the newest tokens and hands out what was
not handed out before. Two things can still change when more tokens come, and are held back:

* the last U+FFFD of a window: it may be the first bytes of a character (byte-level BPE). Only the last one, since a
  decoder makes one mark of an unfinished sequence and every earlier mark stands for bytes that cannot become valid;
* a run of byte tokens (`<0xF0>`, SentencePiece's byte fallback): one bad byte in it turns the whole run into marks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

__all__ = ["Detokenizer", "StopStrings", "detokenize", "skipped_ids"]

# A character has at most 4 bytes, so at most 4 tokens, and one token before it settles how the window's head looks.
KEPT_TOKENS = 8
UNKNOWN_MARK = "\ufffd"
BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


def skipped_ids(tokenizer: Any) -> frozenset[int]:
    """Ids that `tokenizer.decode(..., skip_special_tokens=True)` leaves out."""
    added = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset(added.union(tokenizer.all_special_ids))


class Detokenizer:
    """Incremental `tokenizer.decode`: the joined pieces are the decoded text of all tokens.

    The equality is with `tokenizer.decode(ids, skip_special_tokens=..., clean_up_tokenization_spaces=False)`: cleaning
    up would take back spaces that have already been shown. The cost of a token does not grow with the text.

    Args:
        tokenizer: any tokenizer of transformers, fast or slow.
        skip_special_tokens: leave special tokens out of the text.
    """

    def __init__(self, tokenizer: Any, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._skipped = skipped_ids(tokenizer) if skip_special_tokens else frozenset()
        self._is_byte: dict[int, bool] = {}
        self._window: list[int] = []
        self._sent_chars = 0

    def push(self, token_id: int) -> str:
        """The text that is certain now that `token_id` has come; often empty, never a part of a character."""
        if token_id in self._skipped:
            return ""
        self._window.append(token_id)
        if self._byte_token(token_id):
            return ""
        text = self._decode(self._window)
        piece = self._take(text, len(text) - text.endswith(UNKNOWN_MARK))
        if len(self._window) >= 2 * KEPT_TOKENS:
            self._shorten(len(text) - self._sent_chars)
        return piece

    def finish(self) -> str:
        """The text that was held back; the detokenizer is empty afterwards."""
        text = self._decode(self._window)
        piece = self._take(text, len(text))
        self._window, self._sent_chars = [], 0
        return piece

    def _take(self, text: str, ready_chars: int) -> str:
        piece = text[self._sent_chars : ready_chars]
        self._sent_chars = max(self._sent_chars, ready_chars)
        return piece

    def _shorten(self, held_chars: int) -> None:
        """Keep the newest tokens, so that a step's cost is bounded.

        The cut may fall inside a character or a byte run (which has ended, since its newest token is not a byte); the
        shorter window then begins with marks, but ends with the same text, so what was sent is counted from its end.
        """
        self._window = self._window[-KEPT_TOKENS:]
        self._sent_chars = len(self._decode(self._window)) - held_chars

    def _byte_token(self, token_id: int) -> bool:
        known = self._is_byte.get(token_id)
        if known is None:
            token = self._tokenizer.convert_ids_to_tokens(token_id)
            known = self._is_byte[token_id] = isinstance(token, str) and bool(BYTE_TOKEN.fullmatch(token))
        return known

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(
            token_ids, skip_special_tokens=self._skip_special_tokens, clean_up_tokenization_spaces=False
        )


def detokenize(tokenizer: Any, token_ids: Iterable[int], skip_special_tokens: bool = True) -> Iterator[str]:
    """Non-empty pieces of text for `token_ids`, each as soon as it is certain."""
    detokenizer = Detokenizer(tokenizer, skip_special_tokens)
    for token_id in token_ids:
        if piece := detokenizer.push(token_id):
            yield piece
    if rest := detokenizer.finish():
        yield rest


class StopStrings:
    """Cuts a stream of pieces before the stop string that is complete first, however the pieces are cut.

    Args:
        stops: non-empty strings; the text ends before the first occurrence of any of them.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, piece: str) -> str:
        """The text that can be shown now; the start of a possible stop string is held back."""
        text = self._held + piece
        ends = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if ends:
            self.stopped, self._held = True, ""
            return text[: min(ends)[1]]
        held_chars = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held_chars :]
        return text[: len(text) - held_chars]

    def finish(self) -> str:
        """What was held back and did not become a stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
