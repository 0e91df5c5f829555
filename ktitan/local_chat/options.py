"""What the chat was asked for, and the prompt that its options name."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ktitan.errors import FormatError, IoError, UnsupportedError

__all__ = ["ChatOptions", "read_prompt"]

MAX_PROMPT_BYTES = 64 << 20


@dataclass(frozen=True)
class ChatOptions:
    """Options of the chat, checked by the command line.

    Attributes:
        model: directory, `.gguf`, hub id or `demo`.
        load: keyword arguments of `ktitan.api.load`.
        stream: keyword arguments of `ktitan.api.stream`.
        system: system prompt; empty for none.
        threads: threads on the CPU; None leaves them.
        no_color: plain text on stderr.
        stats: after each answer, say what its streams did.
        record_trace: file for what the routers chose; None: not recorded.
        context_tokens: most tokens of a conversation with its answer; None: what the model and the KV budget allow.
        prompt_cache: a turn runs only what the turns before it did not.
    """

    model: str
    load: dict[str, Any] = field(default_factory=dict)
    stream: dict[str, Any] = field(default_factory=dict)
    system: str = ""
    threads: int | None = None
    no_color: bool = False
    stats: bool = False
    record_trace: Path | None = None
    context_tokens: int | None = None
    prompt_cache: bool = True


def read_prompt(prompt: str | None, prompt_file: Path | None) -> str | None:
    """The one prompt to answer, from `-p`, a file, or a stdin that is no terminal; None for a chat.

    Raises:
        FormatError: the text is not UTF-8, or larger than any prompt.
        IoError: the file cannot be read.
        UnsupportedError: the prompt is empty.
    """
    if prompt is not None:
        text, where = prompt, "--prompt"
    elif prompt_file is not None:
        where = str(prompt_file)
        text = _decode(_read(prompt_file), where)
    elif not sys.stdin.isatty():
        text, where = _decode(sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1), "stdin"), "stdin"
    else:
        return None
    if not text.strip():
        raise UnsupportedError("the prompt is empty", where, "write a question")
    return text


def _read(file: Path) -> bytes:
    """The file's bytes; a pipe will do, as in `--prompt-file <(command)`."""
    try:
        with file.open("rb") as opened:
            return opened.read(MAX_PROMPT_BYTES + 1)
    except OSError as error:
        raise IoError.of(error, "the prompt cannot be read", file) from error


def _decode(data: bytes, where: str) -> str:
    """UTF-8 text without the line end that `echo` and editors put at its end."""
    if len(data) > MAX_PROMPT_BYTES:
        raise FormatError(f"the prompt is larger than {MAX_PROMPT_BYTES >> 20} MiB", where, "is it the right file?")
    try:
        return data.decode("utf-8-sig").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise FormatError(
            f"the prompt is not UTF-8 text: byte {error.start} is wrong", where, "save or convert it as UTF-8"
        ) from error
