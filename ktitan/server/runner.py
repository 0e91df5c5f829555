"""What runs in the model's thread."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from ktitan.api import GenerationStats, PromptCache, PromptProgress, generate_steps
from ktitan.server.answer import AnswerText, Choice
from ktitan.server.events import Done, Finish, Prefill
from ktitan.server.job import Job

__all__ = ["run_job"]


def run_job(
    model: Any, tokenizer: Any, job: Job, chunk_tokens: int | None, prompt_cache: PromptCache | None = None
) -> None:
    """Make the answers of `job` one after the other, until it is done or nobody wants the rest.

    Raises:
        KtitanError: a limit was met on the way; anything else is a fault.
    """
    for index, choice in enumerate(job.choices):
        if not _run_choice(model, tokenizer, job, choice, index, chunk_tokens, prompt_cache):
            return
    job.emit(Done(job.usage))


def _run_choice(
    model: Any,
    tokenizer: Any,
    job: Job,
    choice: Choice,
    index: int,
    chunk_tokens: int | None,
    prompt_cache: PromptCache | None,
) -> bool:
    """Make one answer; False when it was not wanted to its end."""
    answer = AnswerText(tokenizer, choice, index)
    job.stats = stats = GenerationStats()
    steps = generate_steps(
        model,
        choice.prompt_ids,
        max_new_tokens=choice.max_new_tokens,
        sampling=choice.sampling,
        eos_ids=choice.end_ids,
        ignore_eos=choice.ignore_eos,
        chunk_tokens=chunk_tokens,
        prompt_cache=prompt_cache,
        stats=stats,
        likeliest=choice.likeliest,
    )
    try:
        with closing(steps):
            for step in steps:
                if job.stop_asked.is_set():
                    return False
                if isinstance(step, PromptProgress):
                    if step.done_tokens:  # 0: nothing was kept of it
                        job.emit(Prefill(step.done_tokens, step.total_tokens))
                elif delta := answer.push(step):
                    job.emit(delta)
                if answer.stopped:
                    break
    finally:
        # As with the prompt's tokens, what further answers to a prompt reuse of it is not counted.
        if index == 0 or choice.prompt_ids is not job.choices[index - 1].prompt_ids:
            job.usage.cached_tokens += stats.cached_tokens
        job.usage.completion_tokens += stats.new_tokens
        job.usage.reasoning_tokens += answer.reasoning_tokens
    if delta := answer.finish():
        job.emit(delta)
    reason = "stop" if answer.stopped or stats.stop_reason == "stop" else "length"
    job.emit(Finish(index, reason))
    return True
