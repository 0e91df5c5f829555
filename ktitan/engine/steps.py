"""What a generation hands out step by step: how far the prompt is, and each token with its probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["PromptProgress", "Step", "Token", "score_token"]


@dataclass(frozen=True)
class PromptProgress:
    """A chunk of the prompt has been run.

    Attributes:
        done_tokens: tokens that were run, those of a given cache included.
        total_tokens: tokens of the prompt.
    """

    done_tokens: int
    total_tokens: int


@dataclass(frozen=True)
class Token:
    """A token was chosen.

    Attributes:
        id: its id.
        logprob: natural logarithm of its probability in the model's own distribution: before temperature, penalties,
            bias and cuts. NaN where none was asked for.
        likeliest: the likeliest tokens of that distribution with their log probabilities, best first.
    """

    id: int
    logprob: float = float("nan")
    likeliest: tuple[tuple[int, float], ...] = ()


Step = PromptProgress | Token


def score_token(logits: torch.Tensor, token: int, likeliest: int) -> Token:
    """`token` with its log probability and those of the `likeliest` tokens, by the raw `logits` [1, V]."""
    logprobs = torch.log_softmax(logits[0].float(), dim=-1)
    best = logprobs.topk(min(likeliest, logprobs.shape[0]))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return Token(token, float(logprobs[token].item()), tuple(pairs))
