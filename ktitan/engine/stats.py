"""What a generation did: counts and times."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GenerationStats"]


@dataclass
class GenerationStats:
    """What one generation did; it is filled while the generation runs.

    Times are those of the model and the sampler alone: what the reader of the stream does in between is not counted.

    Attributes:
        prompt_tokens: tokens of the prompt that were run, without those whose keys and values were there already.
        cached_tokens: those: of a `PromptCache`, or in a given cache.
        prefill_seconds: time from the start to the first token.
        new_tokens: tokens handed out; the end mark is not one of them.
        decode_steps: forward passes after the prompt's.
        decode_seconds: time of those passes.
        kv_bytes: what keys and values take now, with those that a `PromptCache` keeps; 0 where the cache does not tell.
        stop_reason: "stop" (end mark or stop string), "length", "context" (the context is full), or "closed"
            (the reader went away); empty while it runs.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefill_seconds: float = 0.0
    new_tokens: int = 0
    decode_steps: int = 0
    decode_seconds: float = 0.0
    kv_bytes: int = 0
    stop_reason: str = ""

    @property
    def prefill_tokens_per_second(self) -> float:
        """Prompt tokens a second; 0 before there are any."""
        return self.prompt_tokens / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_tokens_per_second(self) -> float:
        """Decode steps a second; 0 before there are any."""
        return self.decode_steps / self.decode_seconds if self.decode_seconds else 0.0

    def add(self, other: GenerationStats) -> None:
        """Add the counts and times of `other`, for the total of a session."""
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.prefill_seconds += other.prefill_seconds
        self.new_tokens += other.new_tokens
        self.decode_steps += other.decode_steps
        self.decode_seconds += other.decode_seconds
