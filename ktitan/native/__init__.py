"""Products with packed weights on the CPU; the only package that touches ctypes and native code."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ktitan.native.backends import Backend, backend, native_reason
    from ktitan.native.bank import ExpertBank
    from ktitan.native.calls import embedding, experts, format_reason, linear
    from ktitan.native.library import thread_count as default_threads
    from ktitan.native.matrix import PackedMatrix
    from ktitan.native.shapes import ExpertShape, MatrixShape
    from ktitan.native.streams import stream_experts, stream_linear, stream_rows

__all__ = [
    "Backend",
    "ExpertBank",
    "ExpertShape",
    "MatrixShape",
    "PackedMatrix",
    "backend",
    "default_threads",
    "embedding",
    "experts",
    "format_reason",
    "linear",
    "native_reason",
    "stream_experts",
    "stream_linear",
    "stream_rows",
]

# Found on first use: the library and the probes of this package answer without torch, which `ktitan doctor` needs.
_LATER = {
    "Backend": ("backends", "Backend"),
    "ExpertBank": ("bank", "ExpertBank"),
    "ExpertShape": ("shapes", "ExpertShape"),
    "MatrixShape": ("shapes", "MatrixShape"),
    "PackedMatrix": ("matrix", "PackedMatrix"),
    "backend": ("backends", "backend"),
    "default_threads": ("library", "thread_count"),
    "embedding": ("calls", "embedding"),
    "experts": ("calls", "experts"),
    "format_reason": ("calls", "format_reason"),
    "linear": ("calls", "linear"),
    "native_reason": ("backends", "native_reason"),
    "stream_experts": ("streams", "stream_experts"),
    "stream_linear": ("streams", "stream_linear"),
    "stream_rows": ("streams", "stream_rows"),
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'ktitan.native' has no attribute {name!r}")
    module, attribute = _LATER[name]
    return getattr(importlib.import_module(f"ktitan.native.{module}"), attribute)
