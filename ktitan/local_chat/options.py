"""What the chat was asked for, and the prompt that its options name."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ktitan.errors import FormatError, UnsupportedError

__all__ = ["ChatOptions", "read_prompt"]


@dataclass(frozen=True)
class ChatOptions:
    """Options of the chat, checked by the command line.

    Attributes:
        model: directory, `.gguf`, hub id or `demo`.
        load: keyword arguments of `ktitan.api.load`.
        stream: keyword arguments of `ktitan.api.stream`.
        system: system prompt; empty for none.
        no_color: plain text on stderr.
    """

    model: str
    load: dict[str, Any] = field(default_factory=dict)
    stream: dict[str, Any] = field(default_factory=dict)
    system: str = ""
    no_color: bool = False


def read_prompt(prompt: str | None, prompt_file: Path | None) -> str | None:
    """The one prompt to answer, from `-p`, a file, or a stdin that is no terminal; None for a chat.

    Raises:
        FormatError: the text is not UTF-8.
        UnsupportedError: the prompt is empty.
    """
    if prompt is not None:
        text, where = prompt, "--prompt"
    elif prompt_file is not None:
        text, where = _decode(prompt_file.read_bytes(), str(prompt_file)), str(prompt_file)
    elif not sys.stdin.isatty():
        text, where = _decode(sys.stdin.buffer.read(), "stdin"), "stdin"
    else:
        return None
    if not text.strip():
        raise UnsupportedError("the prompt is empty", where, "write a question")
    return text


def _decode(data: bytes, where: str) -> str:
    """UTF-8 text without the line end that `echo` and editors put at its end."""
    try:
        return data.decode("utf-8-sig").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise FormatError(
            f"the prompt is not UTF-8 text: byte {error.start} is wrong", where, "save or convert it as UTF-8"
        ) from error
