"""/v1/completions."""

from __future__ import annotations

from ktitan.api import encode_text
from ktitan.server.answer import Choice
from ktitan.server.errors import ApiError
from ktitan.server.fim import fill_prompt
from ktitan.server.forms import CompletionForm
from ktitan.server.schemas import CompletionRequest
from ktitan.server.service import Service

__all__ = ["completion_choices", "completion_form"]

# OpenAI's own default for this endpoint.
_DEFAULT_TOKENS = 16


def completion_choices(service: Service, body: CompletionRequest) -> list[Choice]:
    """The answers that `body` asks for, those of the first prompt first; runs where the tokenizer may be used.

    Raises:
        KtitanError, ApiError: options or a prompt's length are refused.
    """
    service.check_ids("logit_bias", body.bias)
    choices = []
    for prompt in body.prompts:
        prompt_ids, ends = _encoded(service, prompt, body.suffix)
        longest = service.context.answer_tokens(len(prompt_ids), body.max_tokens or _DEFAULT_TOKENS, "prompt")
        for index in range(body.n or 1):
            choices.append(
                Choice(
                    prompt_ids=prompt_ids,
                    max_new_tokens=longest,
                    sampling=body.sampling(service.generation_config, index),
                    end_ids=service.end_ids | ends,
                    ignore_eos=bool(body.ignore_eos),
                    stops=body.stops,
                    likeliest=body.logprobs,
                )
            )
    return choices


def completion_form(service: Service, body: CompletionRequest, count: int) -> CompletionForm:
    """How the answers are written; runs where the tokenizer may be used."""
    echoes = [_text(service, prompt) for prompt in body.prompts for _ in range(body.n or 1)] if body.echo else []
    scores = body.logprobs is not None
    return CompletionForm(service.id, count, service.token_bytes, scores, body.include_usage, echoes)


def _encoded(service: Service, prompt: str | list[int], suffix: str | None) -> tuple[list[int], frozenset[int]]:
    if not isinstance(prompt, str):
        if suffix is not None:
            raise ApiError(400, "suffix needs a prompt that is text", "suffix", "unsupported")
        service.check_ids("prompt", prompt)
        return prompt, frozenset()
    service.check_text("prompt", prompt)
    if suffix is None:
        return encode_text(service.tokenizer, prompt), frozenset()
    service.check_text("suffix", suffix)
    return fill_prompt(service.tokenizer, prompt, suffix)


def _text(service: Service, prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else str(service.tokenizer.decode(prompt))
