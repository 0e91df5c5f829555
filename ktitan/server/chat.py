"""/v1/chat/completions."""

from __future__ import annotations

import json
from typing import Any

from ktitan.api import encode_rendered, render_messages
from ktitan.errors import UnsupportedError
from ktitan.server.answer import Choice
from ktitan.server.forms import ChatForm
from ktitan.server.reasoning import opens_reasoning
from ktitan.server.schemas import ChatRequest
from ktitan.server.service import Service

__all__ = ["chat_choices", "chat_form"]


def chat_choices(service: Service, body: ChatRequest) -> list[Choice]:
    """The answers that `body` asks for; runs where the tokenizer may be used.

    Raises:
        KtitanError, ApiError: messages, options or the prompt's length are refused.
    """
    text = render_messages(service.tokenizer, [_parsed_calls(message) for message in body.messages], _variables(body))
    service.check_text("messages", text)
    prompt_ids = encode_rendered(service.tokenizer, text)
    service.check_ids("logit_bias", body.bias)
    longest = service.context.answer_tokens(len(prompt_ids), body.most_tokens, "messages")
    return [
        Choice(
            prompt_ids=prompt_ids,
            max_new_tokens=longest,
            sampling=body.sampling(service.generation_config, index),
            end_ids=service.end_ids,
            ignore_eos=bool(body.ignore_eos),
            stops=body.stops,
            likeliest=body.likeliest,
            splits=service.thinks,
            opened=opens_reasoning(text),
        )
        for index in range(body.n or 1)
    ]


def chat_form(service: Service, body: ChatRequest, count: int) -> ChatForm:
    """How the answers are written."""
    return ChatForm(service.id, count, service.token_bytes, body.likeliest is not None, body.include_usage)


def _variables(body: ChatRequest) -> dict[str, Any]:
    """What the template may read besides the messages."""
    given = dict(body.chat_template_kwargs or {})
    if body.tools:
        given["tools"] = body.tools
    if body.reasoning_effort is not None:
        given.setdefault("reasoning_effort", body.reasoning_effort)
    return given


def _parsed_calls(message: dict[str, Any]) -> dict[str, Any]:
    """OpenAI sends a call's arguments as JSON text; templates want what the text says."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_parsed_call(call) for call in calls]}


def _parsed_call(call: Any) -> Any:
    function: Any = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(arguments, str):
        return call
    try:
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError) as error:
        remedy = "send the text that the model wrote"
        raise UnsupportedError("the arguments of a tool call are not JSON", "messages", remedy) from error
    return {**call, "function": {**function, "arguments": parsed}}
