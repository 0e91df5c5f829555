"""What clients send. Types are strict: "0.5" is no number, and true is none either."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, model_validator

from ktitan.api import Sampling
from ktitan.server.errors import ApiError

__all__ = ["MAX_CHOICES", "MAX_PROMPTS", "ChatRequest", "CommonRequest", "CompletionRequest", "StreamOptions"]

MAX_CHOICES, MAX_PROMPTS, MAX_ANSWERS, MAX_LIKELIEST = 16, 64, 128, 20

TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
TokenKey = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
Bias = Annotated[float, Field(ge=-100, le=100)]
StopText = Annotated[str, Field(min_length=1, max_length=1000)]
_PART = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
}
# Checked by the engine, which knows more of them than a schema can say; this is for the document.
Message = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {
            "type": "object",
            "required": ["role"],
            "properties": {
                "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
                "content": {
                    "description": "Text, or parts of type text; null only beside tool_calls.",
                    "anyOf": [{"type": "string"}, {"type": "array", "items": _PART}, {"type": "null"}],
                },
            },
        }
    ),
]

# Fields that would change the answer and are not supported, with the values that ask for nothing.
_NOTHING: dict[str, tuple[Any, ...]] = {
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "tool_choice": ("auto", "none"),
    "function_call": ("auto", "none"),
    "min_tokens": (0,),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "typical_p": (1,),
    "mirostat": (0,),
    "mirostat_mode": (0,),
    "dry_multiplier": (0,),
    "xtc_probability": (0,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "prompt_logprobs": (0,),
    "continue_final_message": (False,),
    "add_generation_prompt": (True,),
    "grammar": ("",),
    "json_schema": (),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
}
# What OpenAI's clients send for OpenAI's own sake.
_HARMLESS = {
    "user",
    "store",
    "metadata",
    "service_tier",
    "parallel_tool_calls",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prediction",
    "verbosity",
    "functions",
}


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class CommonRequest(BaseModel):
    """What chat and plain completions share. Fields that nobody knows are ignored, and named in a response header."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, protected_namespaces=())

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    max_tokens: int | None = Field(None, ge=1)
    stop: StopText | Annotated[list[StopText], Field(max_length=64)] | None = None
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=0, le=2**31 - 1)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[TokenKey, Bias] | None = None
    seed: int | None = Field(None, ge=-(2**63), le=2**64 - 1)
    ignore_eos: bool | None = None

    @model_validator(mode="after")
    def _refuse_what_is_not_done(self) -> CommonRequest:
        for name, value in (self.model_extra or {}).items():
            if name in _NOTHING and value is not None and value not in _NOTHING[name]:
                raise ApiError(400, f"{name} is not supported with this value", name, "unsupported")
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "stream_options needs stream: true", "stream_options", "invalid_value")
        return self

    @property
    def ignored(self) -> list[str]:
        """Fields that nobody here knows."""
        return [name for name in self.model_extra or {} if name not in _HARMLESS and name not in _NOTHING]

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def bias(self) -> dict[int, float]:
        """Bias of each token's logit."""
        return {int(token): float(bias) for token, bias in (self.logit_bias or {}).items()}

    def sampling(self, generation_config: Any, choice: int) -> Sampling:
        """How the tokens of one choice are chosen; each choice has a seed of its own.

        Raises:
            UnsupportedError: a value is out of its range.
        """
        seed = self.seed
        if seed is not None and choice:
            seed = seed + choice if seed + choice < 2**64 else seed + choice - 2**64
        return Sampling.resolve(
            generation_config,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=self.bias or None,
            seed=seed,
        )


class ChatRequest(CommonRequest):
    """Body of /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LIKELIEST)
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None

    @model_validator(mode="after")
    def _logprobs_first(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", "top_logprobs", "invalid_value")
        return self

    @property
    def likeliest(self) -> int | None:
        """Alternatives to each token; None for no log probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def most_tokens(self) -> int | None:
        """Longest answer; None for what fits."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


class CompletionRequest(CommonRequest):
    """Body of /v1/completions."""

    prompt: (
        str
        | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
        | Annotated[list[TokenId], Field(min_length=1)]
        | Annotated[list[Annotated[list[TokenId], Field(min_length=1)]], Field(min_length=1, max_length=MAX_PROMPTS)]
    )
    suffix: str | None = None
    echo: bool | None = None
    best_of: int | None = Field(None, ge=1)
    logprobs: int | None = Field(None, ge=0, le=MAX_LIKELIEST)

    @model_validator(mode="after")
    def _refuse_combinations(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ApiError(400, "best_of other than n is not supported", "best_of", "unsupported")
        if len(self.prompts) * (self.n or 1) > MAX_ANSWERS:
            raise ApiError(400, f"prompts times n is more than {MAX_ANSWERS} answers", "n", "invalid_value")
        if self.echo and self.logprobs is not None:
            raise ApiError(400, "log probabilities of an echoed prompt are not supported", "echo", "unsupported")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, each as text or ids."""
        prompt: Any = self.prompt
        return [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else list(prompt)
