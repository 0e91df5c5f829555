"""NVIDIA's runtime compiler, which GPU kernels will need: in pip's CUDA packages or among the system's libraries."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import re
from pathlib import Path

__all__ = ["nvrtc_version"]


def nvrtc_version() -> str | None:
    """The version of the library that is found first ("13.0"), None when there is none or it does not load."""
    for name in _candidates():
        try:
            library = ctypes.CDLL(name)
            major, minor = ctypes.c_int(), ctypes.c_int()
            failed = library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        except (OSError, AttributeError):
            continue
        if not failed:
            return f"{major.value}.{minor.value}"
    return None


def _candidates() -> list[str]:
    # The wheels put it into nvidia/cu13/lib, older ones into nvidia/cuda_nvrtc/lib.
    package = importlib.util.find_spec("nvidia")
    folders = package.submodule_search_locations or () if package is not None else ()
    files = (file for folder in folders for file in sorted(Path(folder).glob("*/lib/libnvrtc.so.*")))
    packaged = [str(file) for file in files if re.fullmatch(r"libnvrtc\.so\.\d+(\.\d+)?", file.name)]
    system = ctypes.util.find_library("nvrtc")
    return [*packaged, *([system] if system else [])]
