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

__all__ = [
    "Backend",
    "ExpertBank",
    "PackedMatrix",
    "backend",
    "default_threads",
    "embedding",
    "experts",
    "format_reason",
    "linear",
    "native_reason",
]

# Found on first use: the library and the probes of this package answer without torch, which `ktitan doctor` needs.
_LATER = {
    "Backend": ("backends", "Backend"),
    "ExpertBank": ("bank", "ExpertBank"),
    "PackedMatrix": ("matrix", "PackedMatrix"),
    "backend": ("backends", "backend"),
    "default_threads": ("library", "thread_count"),
    "embedding": ("calls", "embedding"),
    "experts": ("calls", "experts"),
    "format_reason": ("calls", "format_reason"),
    "linear": ("calls", "linear"),
    "native_reason": ("backends", "native_reason"),
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'ktitan.native' has no attribute {name!r}")
    module, attribute = _LATER[name]
    return getattr(importlib.import_module(f"ktitan.native.{module}"), attribute)
