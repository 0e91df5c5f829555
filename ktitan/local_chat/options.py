"""What the chat was asked for, and the prompt or plugin that its options name."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ktitan.errors import FormatError, UnsupportedError

__all__ = ["ChatOptions", "import_plugin", "read_prompt"]


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
        raise UnsupportedError("the prompt is empty", where)
    return text


def _decode(data: bytes, where: str) -> str:
    """UTF-8 text without the line end that `echo` and editors put at its end."""
    try:
        return data.decode("utf-8-sig").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise FormatError(f"the prompt is not UTF-8 text: byte {error.start} is wrong", where) from error


def import_plugin(name: str) -> None:
    """Run a user's module, which registers operators: a `.py` file, or a module by its dotted name.

    Raises:
        UnsupportedError: there is no such file or module.
    """
    path = Path(name)
    if not name.endswith(".py"):
        _import_by_name(name)
        return
    if not path.is_file():
        raise UnsupportedError("no such file", name, "give a Python file, or a module that Python finds")
    spec = importlib.util.spec_from_file_location(f"ktitan_plugin_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UnsupportedError("not a Python module", name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)


def _import_by_name(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        # A module that is missing inside the plugin is the plugin's own fault and keeps its traceback.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise UnsupportedError("no such module", name, "give a Python file, or a module that Python finds") from error
