"""How kernels are compiled: without Python's lock, without fast-math, and kept on disk where that is possible."""

from __future__ import annotations

import hashlib
import logging
import tempfile
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import config as numba_config
from numba.extending import intrinsic

__all__ = ["STANDARD_FLOATS", "cache_folder", "emitted", "jit", "swap_float_mode", "switched_off"]

logger = logging.getLogger("ktitan.native")

# numba makes its settings' names at run time.
_settings: Any = numba_config
_settings_lock = threading.Lock()


def jit(function: Callable[..., Any]) -> Any:
    """Decorator: compile `function` at its first call for the types it is called with."""
    folder = cache_folder()
    if folder is None:
        return numba.njit(nogil=True, fastmath=False)(function)
    # numba reads the setting when it decorates, so it can be ours for a moment; threads may meet new kernels at once.
    with _settings_lock:
        before, _settings.CACHE_DIR = _settings.CACHE_DIR, str(folder)
        try:
            return numba.njit(nogil=True, fastmath=False, cache=True)(function)
        finally:
            _settings.CACHE_DIR = before


def emitted(function: Callable[..., Any]) -> Any:
    """Decorator: `function(typing, *types)` gives a signature and the function that emits LLVM IR for a call.

    Arguments that are constants in the calling kernel arrive as literal types.
    """
    return intrinsic(prefer_literal=True)(function)


def switched_off() -> bool:
    """Whether the user told numba not to compile; kernels are not Python and cannot run without that."""
    return bool(_settings.DISABLE_JIT)


@lru_cache(maxsize=1)
def cache_folder() -> Path | None:
    """Where compiled kernels are kept between processes, or None when no place can be written.

    numba looks for changes only in the file of the function that it cached, and not in what that function calls. So the
    folder's name is a digest of all kernel sources: a change in any of them begins anew.
    """
    here = Path(__file__).resolve().parent
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(here.glob("numba_*.py")))).hexdigest()[:16]
    chosen = [Path(_settings.CACHE_DIR)] if _settings.CACHE_DIR else [here / "__pycache__", *_home_cache()]
    for base in chosen:
        folder = base / f"ktitan-numba-{digest}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError as error:
            logger.debug("compiled kernels cannot be kept in %s: %s", folder, error)
    logger.info("compiled kernels are not kept: no folder can be written, so every start compiles them again")
    return None


def _home_cache() -> list[Path]:
    """A folder of the user's own; none for a user without a home, since what others can write is not loaded as code."""
    try:
        return [Path.home() / ".cache" / "ktitan"]
    except RuntimeError:
        return []


# MXCSR after a reset: round to nearest even, keep subnormals, no traps.
STANDARD_FLOATS = 0x1F80


@emitted
def swap_float_mode(typing: Any, mode: Any) -> Any:
    """Set this thread's MXCSR to the uint32 `mode` and return what it was; nothing (and 0) where there is none.

    A process may have asked for subnormals to be flushed (`torch.set_flush_denormal`); results must not depend on it.
    """

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        word = ir.IntType(32)
        if not builder.module.triple.startswith(("x86_64", "i686")):
            return ir.Constant(word, 0)
        slot = builder.alloca(word)
        access = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer()])
        place = builder.bitcast(slot, ir.IntType(8).as_pointer())
        store, load = (_declared(builder.module, access, f"llvm.x86.sse.{name}") for name in ("stmxcsr", "ldmxcsr"))
        builder.call(store, [place])
        before = builder.load(slot)
        builder.store(args[0], slot)
        builder.call(load, [place])
        return before

    return types.uint32(types.uint32), emit


def _declared(module: ir.Module, kind: ir.FunctionType, name: str) -> ir.Function:
    return module.globals.get(name) or ir.Function(module, kind, name)
