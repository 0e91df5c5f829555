"""Products with packed weights on the CPU; the only package that touches ctypes and native code."""

from __future__ import annotations

from ktitan.native.backend import Backend, backend, native_reason
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
