"""What the model's thread tells a request about its answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from ktitan.server.errors import ApiError

__all__ = ["Delta", "Done", "Event", "Failed", "Finish", "Heartbeat", "Prefill", "ScoredToken", "Usage"]


@dataclass(frozen=True)
class ScoredToken:
    """A token with its log probability in the model's own distribution, and the likeliest ones there."""

    id: int
    logprob: float
    likeliest: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Delta:
    """More of an answer: reasoning and text, and the tokens that they come from where log probabilities are wanted."""

    index: int
    text: str = ""
    reasoning: str = ""
    tokens: tuple[ScoredToken, ...] = ()


@dataclass(frozen=True)
class Prefill:
    """How much of a prompt has been read."""

    done_tokens: int
    total_tokens: int


@dataclass(frozen=True)
class Finish:
    """An answer is complete: "stop" or "length"."""

    index: int
    reason: str


@dataclass
class Usage:
    """Tokens of a request, over all its answers.

    Attributes:
        prompt_tokens: of each prompt once, however many answers it gets.
        cached_tokens: those of them whose keys and values were there when its first answer began.
        completion_tokens: handed out by the model, end marks not counted.
        reasoning_tokens: those of them that belong to reasoning.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True)
class Done:
    """All answers are complete."""

    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True)
class Failed:
    """No more will come."""

    error: ApiError


@dataclass(frozen=True)
class Heartbeat:
    """Nothing happened for a while; `note` says what is being waited for."""

    note: str


Event = Delta | Prefill | Finish | Done | Failed | Heartbeat
