"""Typed access to the metadata of a GGUF model; values come from strangers and are checked when they are read."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from ktitan.errors import FormatError, UnsupportedError
from ktitan.weights.gguf_source import GgufSource

__all__ = ["GgufKeys", "token_id"]

logger = logging.getLogger("ktitan.weights.gguf")

T = TypeVar("T")


class _Required:
    """Marks a key that has no default."""


REQUIRED = _Required()


class GgufKeys:
    """The metadata of one source, by keys without the architecture's prefix ("block_count")."""

    def __init__(self, source: GgufSource) -> None:
        self.source = source

    def has(self, key: str) -> bool:
        """Whether the file has the key."""
        return self._full(key) in self.source.metadata

    def is_list(self, key: str) -> bool:
        """Whether the file has the key, with a list."""
        return isinstance(self._value(key, None), list)

    def integer(self, key: str, default: int | _Required = REQUIRED, minimum: int = 1) -> int:
        """A whole number; a list with one entry a layer counts when all entries agree.

        Raises:
            FormatError: it is missing, not a whole number, or below `minimum`.
            UnsupportedError: the layers differ.
        """
        value = self._uniform(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise self._fault(key, f"a whole number of at least {minimum}", value)
        return value

    def number(self, key: str, default: float | _Required = REQUIRED) -> float:
        """A real number; a float32 becomes the shortest decimal that reads as the same float32 (1e-06).

        Raises:
            FormatError: it is missing or not a finite number.
        """
        value = self._uniform(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise self._fault(key, "a finite number", value)
        return float(str(np.float32(value))) if np.float32(value) == value else float(value)

    def flag(self, key: str, default: bool | _Required = REQUIRED) -> bool:
        """A truth value.

        Raises:
            FormatError: it is missing or of another type.
        """
        return self._typed(key, bool, "true or false", default)

    def text(self, key: str, default: str | _Required = REQUIRED) -> str:
        """A string.

        Raises:
            FormatError: it is missing or of another type.
        """
        return self._typed(key, str, "a string", default)

    def items(self, key: str, kind: type[T], required: bool = True) -> list[T]:
        """A list whose entries are all of `kind`; an absent one is empty unless it is required.

        Raises:
            FormatError: it is missing or holds something else.
        """
        value = self._value(key, REQUIRED if required else [])
        if not isinstance(value, list) or not all(isinstance(entry, kind) for entry in value):
            raise self._fault(key, f"a list of {kind.__name__}", value)
        return value

    def _typed(self, key: str, kind: type[T], wanted: str, default: T | _Required) -> T:
        value = self._value(key, default)
        if not isinstance(value, kind):
            raise self._fault(key, wanted, value)
        return value

    def _uniform(self, key: str, default: Any) -> Any:
        value = self._value(key, default)
        if not isinstance(value, list):
            return value
        if not value:
            raise self._fault(key, "a number, or one for each layer", value)
        if any(entry != value[0] for entry in value):
            raise UnsupportedError(
                f"{self._full(key)} differs between layers: {value[:8]}", self.source.path, "give a HuggingFace folder"
            )
        return value[0]

    def _value(self, key: str, default: Any) -> Any:
        value = self.source.metadata.get(self._full(key), default)
        if value is REQUIRED:
            raise FormatError(
                f"the metadata lacks {self._full(key)!r}", self.source.path, "convert the model again with llama.cpp"
            )
        return value

    def _full(self, key: str) -> str:
        shared = key.startswith(("tokenizer.", "general."))
        return key if shared else f"{self.source.architecture}.{key}"

    def _fault(self, key: str, wanted: str, value: Any) -> FormatError:
        return FormatError(
            f"metadata key {self._full(key)!r} should be {wanted}, not {str(value)[:60]!r}",
            self.source.path,
            "convert the model again with llama.cpp",
        )


def token_id(metadata: Mapping[str, Any], name: str, vocabulary: int) -> int | None:
    """The id under `tokenizer.ggml.<name>_token_id`, or None when it is absent or not an id of the vocabulary.

    Files in the wild carry -1 or 2**32 - 1 for "none"; as in llama.cpp these are ignored, with a warning.
    """
    key = f"tokenizer.ggml.{name}_token_id"
    value = metadata.get(key)
    if value is None:
        return None
    if isinstance(value, int) and 0 <= value < vocabulary:
        return value
    logger.warning("%s = %r is not a token of this vocabulary (%d tokens) and is ignored", key, value, vocabulary)
    return None
