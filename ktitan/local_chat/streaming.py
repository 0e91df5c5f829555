"""What the chat says of streamed weights: a few words behind every answer, and a block for /stats and --stats."""

from __future__ import annotations

import time
from typing import Any

from ktitan.tiers import format_bytes
from ktitan.tiers.figures import Figures

__all__ = ["Watch", "block", "short_text"]

NOTHING = "nothing is streamed from a drive"


class Watch:
    """Figures of one answer: of its prompt, of what followed, and of both; None while nothing is streamed.

    Args:
        handle: `model.ktitan`.
    """

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._looks = [self._look()]
        self._prompt_ended = False

    def see_prompt(self, done: int, total: int) -> None:
        """So many tokens of the prompt were run."""
        if done >= total and not self._prompt_ended:
            self._prompt_ended = True
            self._looks.append(self._look())

    def end(self) -> None:
        """The answer is complete, or was interrupted."""
        self._looks.append(self._look())

    def prompt(self, tokens: int | None = None) -> Figures | None:
        """Figures of the prompt, of so many tokens."""
        return self._between(0, 1, tokens)

    def answer(self, tokens: int | None = None) -> Figures | None:
        """Figures of the steps after the prompt."""
        return self._between(1, -1, tokens) if self._prompt_ended else None

    def whole(self) -> Figures | None:
        """Figures from the question to the end."""
        return self._between(0, -1, None)

    def _look(self) -> tuple[dict[str, Any] | None, float]:
        return self._handle.store_stats(), time.monotonic()

    def _between(self, first: int, last: int, tokens: int | None) -> Figures | None:
        (before, start), (after, end) = self._looks[first], self._looks[last]
        if before is None or after is None:
            return None
        return Figures.between(before, after, end - start, tokens)


def short_text(figures: Figures | None) -> str:
    """What an answer found in RAM and what it read; "" where nothing is streamed."""
    if figures is None:
        return ""
    rate = figures.drive_bytes_per_second
    share = "" if figures.hit_rate is None else f"{_percent(figures.hit_rate)} hits, "
    return f"{share}{format_bytes(figures.read_bytes)} read" + ("" if rate is None else f" at {format_bytes(rate)}/s")


def block(watch: Watch, stats: Any) -> list[str]:
    """Lines about the answer that `watch` saw; `stats` is its GenerationStats."""
    whole = watch.whole()
    if whole is None:
        return [NOTHING]
    parts = [("prompt", watch.prompt(stats.prompt_tokens)), ("answer", watch.answer(stats.decode_steps))]
    lines = [f"{name}: {_span(figures)}" for name, figures in parts if figures is not None]
    return [*lines, f"prefetch: {_prefetch(whole)}", f"policy: {_policy(whole)}"]


def _span(figures: Figures) -> str:
    """Hits, reads and waiting of a span of time."""
    parts = []
    if figures.hit_rate is not None:
        guessed = f" ({figures.guesses_used} by guesses)" if figures.guesses_used else ""
        parts.append(f"{_percent(figures.hit_rate)} of {figures.demands} hit{guessed}")
    if figures.read_bytes_per_token is not None:
        parts.append(f"{format_bytes(figures.read_bytes_per_token)} read a token")
    if figures.stall_share is not None:
        parts.append(f"waited {figures.stall_seconds:.2f} s ({_percent(figures.stall_share)})")
    if figures.drive_bytes_per_second is not None and figures.drive_share is not None:
        busy = f"busy {_percent(figures.drive_share)}, {figures.overlap_seconds:.2f} s beside computing"
        parts.append(f"drive {format_bytes(figures.drive_bytes_per_second)}/s, {busy}")
    return " | ".join(parts)


def _prefetch(figures: Figures) -> str:
    parts = [f"on, up to {figures.guess_level} a layer" if figures.guessing else "off"]
    if figures.recall is not None:
        missed = "" if figures.recall_of_misses is None else f", {_percent(figures.recall_of_misses)} of misses"
        parts.append(f"foresaw {_percent(figures.recall)} of experts{missed}")
    if figures.waste_share is not None and figures.wasted_bytes is not None:
        used = f"{figures.guesses} guesses, {figures.guesses_used} used ({figures.guesses_late} late)"
        parts.append(f"{used}, {_percent(figures.waste_share)} wasted ({format_bytes(figures.wasted_bytes)})")
    if figures.guess_gain_seconds is not None:
        parts.append(f"last measured gain {1e3 * figures.guess_gain_seconds:.2f} ms a step")
    return " | ".join(parts)


def _policy(figures: Figures) -> str:
    name = figures.policy or "none, no experts are streamed"
    changes = f", changed {figures.policy_changes} times" if figures.policy_changes else ""
    return f"{name}{changes} | {figures.evictions} made room, {figures.passed} passed through"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
