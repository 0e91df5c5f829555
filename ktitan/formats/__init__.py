"""Storage formats: how tensors' numbers lie in files and in memory."""

from __future__ import annotations

from ktitan.formats import ggml, plain
from ktitan.formats.base import Format, find_format, formats, register_format
from ktitan.formats.layout import Span, StoredLayout, StoredRows

__all__ = [
    "Format",
    "Span",
    "StoredLayout",
    "StoredRows",
    "find_format",
    "formats",
    "ggml",
    "plain",
    "register_format",
]
