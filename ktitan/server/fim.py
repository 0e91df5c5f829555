"""Fill in the middle: code between a prefix and a suffix, for models that have tokens for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ktitan.server.errors import ApiError

__all__ = ["FillStyle", "fill_prompt", "fill_style"]


@dataclass(frozen=True)
class FillStyle:
    """How one family writes it; the middle follows the last mark.

    Attributes:
        prefix, suffix, middle: the marks before the prefix, before the suffix, and after it.
        ends: tokens that end the middle, besides the model's own end marks.
    """

    prefix: str
    suffix: str
    middle: str
    ends: tuple[str, ...] = ()


# From the model cards of Qwen2.5-Coder (also CodeGemma), StarCoder, DeepSeek-Coder and Code Llama, in this order.
_STYLES = (
    FillStyle(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        ("<|endoftext|>", "<|fim_pad|>", "<|file_sep|>", "<|repo_name|>", "<|file_separator|>"),
    ),
    FillStyle("<fim_prefix>", "<fim_suffix>", "<fim_middle>", ("<|endoftext|>", "<file_sep>")),
    FillStyle("<\uff5cfim▁begin\uff5c>", "<\uff5cfim▁hole\uff5c>", "<\uff5cfim▁end\uff5c>"),  # full-width bars
    FillStyle("▁<PRE>", "▁<SUF>", "▁<MID>", ("▁<EOT>",)),
)


def fill_style(tokenizer: Any) -> FillStyle | None:
    """The style whose three marks are tokens of the model; None when there is none."""
    known = tokenizer.get_vocab()
    return next((style for style in _STYLES if {style.prefix, style.suffix, style.middle} <= known.keys()), None)


def fill_prompt(tokenizer: Any, prefix: str, suffix: str) -> tuple[list[int], frozenset[int]]:
    """Ids of the prompt, and ids that end the middle.

    Raises:
        ApiError: the model has no tokens for it.
    """
    style = fill_style(tokenizer)
    if style is None:
        raise ApiError(400, "this model has no fill-in-the-middle tokens", "suffix", "unsupported")
    known = tokenizer.get_vocab()
    marks = [known[style.prefix], known[style.suffix], known[style.middle]]
    begin = _begin_ids(tokenizer)
    before = tokenizer(prefix, add_special_tokens=False)["input_ids"]
    ids = [*begin, marks[0], *before, marks[1], *_continued(tokenizer, suffix), marks[2]]
    return ids, frozenset(known[end] for end in style.ends if end in known)


def _begin_ids(tokenizer: Any) -> list[int]:
    """The mark that the tokenizer puts in front of a text, where it does."""
    first = tokenizer("x")["input_ids"][:1]
    return first if first and first[0] == tokenizer.bos_token_id else []


def _continued(tokenizer: Any, text: str) -> list[int]:
    """Ids of `text` in the middle of a line: SentencePiece would put a space in front of it."""
    mark = tokenizer("\n", add_special_tokens=False)["input_ids"]
    both = tokenizer("\n" + text, add_special_tokens=False)["input_ids"]
    plain: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return both[len(mark) :] if mark and both[: len(mark)] == mark else plain
