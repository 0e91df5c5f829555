"""Messages: the history of a chat, the shapes that are accepted, and their token ids by the model's chat template."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jinja2

from ktitan.errors import Fault, UnsupportedError

__all__ = ["Conversation", "check_messages", "encode_messages", "encode_rendered", "encode_text", "render_messages"]

ROLES = ("system", "developer", "user", "assistant", "tool")

# What a part of a content list, or a message itself, is or carries when it is not text alone.
_OTHER_MEDIA = ("image", "video", "audio")

_TEXT_ONLY = "ktitan reads text only: leave it out, or say in words what it shows"

_MESSAGE = '{"role": "user", "content": "..."}'

TEMPLATE = "chat_template"
# What a template can raise from inside jinja2's sandbox; a range too large for it is an OverflowError.
_TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)

Message = dict[str, Any]


@dataclass
class Conversation:
    """The turns of a chat; a turn is a user's message and the answer to it.

    A turn is open between `ask` and `answer` (or `rollback`), so an interrupted answer never leaves a history that ends
    with two user messages in a row.

    Attributes:
        system: the system prompt; empty for none. A change counts from the next question on.
        turns: messages without the system prompt, oldest first.
    """

    system: str = ""
    turns: list[Message] = field(default_factory=list)

    def ask(self, text: str) -> list[Message]:
        """Open a turn with the user's `text` and return all messages to answer; an open turn is dropped first."""
        self.rollback()
        self.turns.append({"role": "user", "content": text})
        return self.messages()

    def answer(self, text: str) -> None:
        """Close the open turn with the model's `text`, whole or interrupted.

        Raises:
            ValueError: no question is open.
        """
        if not self.is_open:
            raise ValueError("no question is open")
        self.turns.append({"role": "assistant", "content": text})

    def rollback(self) -> None:
        """Drop the question that has no answer, if there is one."""
        if self.is_open:
            self.turns.pop()

    def reset(self) -> None:
        """Forget all turns; the system prompt stays."""
        self.turns.clear()

    @property
    def is_open(self) -> bool:
        """Whether the last question has no answer yet."""
        return bool(self.turns) and self.turns[-1]["role"] == "user"

    def messages(self) -> list[Message]:
        """The system prompt, where there is one, and all turns (copies)."""
        head = [{"role": "system", "content": self.system}] if self.system else []
        return head + [dict(turn) for turn in self.turns]


def check_messages(messages: Any) -> list[Message]:
    """Messages in the one shape that templates know: text content, or null beside tool calls.

    Content may be text or a list of text parts, which are joined. An assistant's message with tool calls may have null
    content or none; it stays null, since templates tell null and "" apart.

    Raises:
        UnsupportedError: not a non-empty list of messages, an unknown role, or content of another kind (images, audio,
            video; in a part or beside the text); all at once.
    """
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence) or not messages:
        raise UnsupportedError("messages must be a non-empty list", "messages", f"give [{_MESSAGE}]")
    checked, faults = [], []
    for index, message in enumerate(messages):
        reason = _message_fault(message)
        media = _media_faults(message, f"messages[{index}]")
        if media:
            faults += media
        elif reason:
            faults.append(Fault(reason, f"messages[{index}]", f"write it as {_MESSAGE}"))
        else:
            checked.append({**message, "content": _joined(message.get("content"))})
    if faults:
        raise UnsupportedError.from_faults(faults, f"{len(faults)} messages cannot be read")
    return checked


def _message_fault(message: Any) -> str:
    """Why one message is refused; empty when it is not."""
    if not isinstance(message, Mapping):
        return f"a message is an object with role and content, not {message!r}"
    role = message.get("role")
    if role not in ROLES:
        return f"role {role!r} is not one of {', '.join(ROLES)}"
    content = message.get("content")
    if content is None:
        calls = role == "assistant" and message.get("tool_calls")
        return "" if calls else "content is missing; only an assistant's message with tool_calls has none"
    if isinstance(content, str):
        return ""
    if not isinstance(content, list):
        return f"content {content!r} is neither text nor a list of parts"
    return next((reason for part in content if (reason := _part_fault(part))), "")


def _media_faults(message: Any, where: str) -> list[Fault]:
    """Everything in a message that is no text; a template would drop it, or leave a mark that nothing fills."""
    if not isinstance(message, Mapping):
        return []
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    found = [(f"{where}.{name}", name) for name in message if _is_media(name) and message[name]]
    for number, part in enumerate(parts):
        if isinstance(part, Mapping):
            names = [str(part.get("type", "")), *map(str, part)]
            found += [(f"{where}.content[{number}]", name) for name in names if _is_media(name)][:1]
    return [Fault(f"{name!r} is not text", place, _TEXT_ONLY) for place, name in found]


def _is_media(name: Any) -> bool:
    """`image`, `images`, `image_url`, `input_image`, `video`, `audio_url` and the like."""
    pieces = str(name).lower().split("_")
    return any(piece.removesuffix("s") in _OTHER_MEDIA for piece in pieces)


def _part_fault(part: Any) -> str:
    """Why one part of a content list is refused; empty when it is not."""
    if not isinstance(part, Mapping) or part.get("type") != "text":
        kind = part.get("type") if isinstance(part, Mapping) else part
        return f"content part {kind!r} is not of type 'text', the only one that is read"
    return "" if isinstance(part.get("text"), str) else "a text part has no text"


def _joined(content: str | list[Mapping[str, Any]] | None) -> str | None:
    return "".join(part["text"] for part in content) if isinstance(content, list) else content


def encode_messages(tokenizer: Any, messages: Any, variables: Mapping[str, Any] | None = None) -> list[int]:
    """Token ids of `messages`, as `render_messages` and `encode_rendered` make them."""
    return encode_rendered(tokenizer, render_messages(tokenizer, messages, variables))


def render_messages(tokenizer: Any, messages: Any, variables: Mapping[str, Any] | None = None) -> str:
    """The text of `messages` by the tokenizer's chat template, up to where the answer begins.

    Without a template the contents are joined by newlines, to be continued as plain text. `developer` becomes `system`
    where the template does not know it; beside a system message at the start the two become one.

    Args:
        tokenizer: the model's tokenizer.
        messages: see `check_messages`.
        variables: what else the template may read, e.g. `enable_thinking`, `tools`.

    Raises:
        UnsupportedError: a message's shape is refused, the template refuses the conversation, or a variable's name is
            an argument of transformers' own.
    """
    checked = check_messages(messages)
    if not tokenizer.chat_template:
        return "\n".join(message["content"] or "" for message in checked)
    given = dict(variables or {})
    _refuse_reserved(tokenizer, given)
    checked = _without_developer(checked, str(tokenizer.chat_template))
    text = _rendered(tokenizer, checked, given)
    if not text:
        raise UnsupportedError(
            "the model's chat template makes no prompt of these messages", TEMPLATE, "set tokenizer.chat_template"
        )
    return text


def _rendered(tokenizer: Any, messages: list[Message], variables: Mapping[str, Any]) -> str:
    """What the template makes; where it fails on null content beside tool calls, of "" in its place.

    Templates that know no tools read the content of every message.

    Raises:
        UnsupportedError: the template refuses the conversation.
    """
    filled = [{**message, "content": message["content"] or ""} for message in messages]
    for tried in [messages, filled] if filled != messages else [messages]:
        try:
            text: str = tokenizer.apply_chat_template(tried, tokenize=False, add_generation_prompt=True, **variables)
            return text
        except _TEMPLATE_FAULTS as error:
            fault = error
    raise _template_error(fault) from fault


def _template_error(error: Exception) -> UnsupportedError:
    """What is said of a chat template that does not come to its end; templates are a stranger's code."""
    if isinstance(error, jinja2.exceptions.SecurityError):
        return UnsupportedError(
            f"the model's chat template tries what templates may not do, and was stopped: {error}",
            TEMPLATE,
            "do not trust this model, or set tokenizer.chat_template to a template that you trust",
        )
    if isinstance(error, jinja2.TemplateSyntaxError):
        return UnsupportedError(
            f"the model's chat template is not valid Jinja (line {error.lineno}): {error.message}",
            TEMPLATE,
            "set tokenizer.chat_template to a template that is, or to None for plain text",
        )
    reason = str(error) or type(error).__name__
    return UnsupportedError(
        f"the model's chat template refuses these messages: {reason}",
        TEMPLATE,
        "change the roles or their order, or start a new conversation",
    )


def _refuse_reserved(tokenizer: Any, variables: Mapping[str, Any]) -> None:
    """A variable must not replace the template or decide what is made of it; `tools` is for the template."""
    parameters = inspect.signature(tokenizer.apply_chat_template).parameters.values()
    reserved = {one.name for one in parameters if one.kind is not one.VAR_KEYWORD} - {"tools", "documents"}
    taken = sorted(reserved.union(("messages", "self")).intersection(variables))
    if taken:
        raise UnsupportedError(f"{', '.join(taken)} cannot be set here", "chat_template_kwargs", "leave it out")


def encode_rendered(tokenizer: Any, text: str) -> list[int]:
    """Token ids of what `render_messages` made; a template writes the special tokens itself.

    Raises:
        UnsupportedError: the text is empty or not Unicode.
    """
    return _encode(tokenizer, text, add_special_tokens=not tokenizer.chat_template)


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Token ids of plain text to be continued, with the special tokens that the tokenizer puts in front.

    Raises:
        UnsupportedError: there is no token to start from, or the text is not Unicode.
    """
    return _encode(tokenizer, text, add_special_tokens=True)


def _encode(tokenizer: Any, text: str, add_special_tokens: bool) -> list[int]:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UnsupportedError(
            f"character {error.start} is half of a surrogate pair, which is no text", "prompt", "send it as UTF-8"
        ) from error
    token_ids: list[int] = tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"]
    if not token_ids:
        raise UnsupportedError("the prompt is empty", "prompt", "give at least one character")
    return token_ids


def _without_developer(messages: list[Message], template: str) -> list[Message]:
    """`developer` as `system` for a `template` that does not name the role; leading system messages become one."""
    if "developer" in template or all(message["role"] != "developer" for message in messages):
        return messages
    renamed = [{**message, "role": "system"} if message["role"] == "developer" else message for message in messages]
    leading = next((index for index, message in enumerate(renamed) if message["role"] != "system"), len(renamed))
    head = {**renamed[0], "content": "\n\n".join(message["content"] for message in renamed[:leading])}
    return [head, *renamed[leading:]] if leading else renamed
