"""The native library: found, checked and loaded once; its instruction set and threads."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ktitan import env
from ktitan.errors import HardwareError, UnsupportedError
from ktitan.hardware import detect_cpu

__all__ = [
    "ABI",
    "ISAS",
    "State",
    "built_isa",
    "checked_count",
    "isa",
    "loaded",
    "set_threads",
    "state",
    "thread_count",
    "threads",
    "use_isa",
]

# Must equal KT_ABI in csrc/cpu/ktitan_cpu.h; both change with any change of the C interface.
ABI = 5
# Instruction sets by the library's numbers, each above the one before.
ISAS = ("generic", "avx2", "avx512")

LIBRARY = Path(__file__).with_name("_cpu.so")
# Where setup.py says why there is no library.
BUILD_NOTE = Path(__file__).with_name("_cpu_build.txt")

_REBUILD = "reinstall ktitan with a C++ compiler at hand (`pip install -e .` in the source tree)"
_MACHINES = ("x86_64", "AMD64")
_SIGNATURES = {
    "kt_linear": "ppiqpip",
    "kt_experts": "ppiqpqpip",
    "kt_rows": "ppqp",
    "kt_store_open": "pp",
    "kt_store_close": "p",
    "kt_store_add_file": "psp",
    "kt_store_count": "pp",
    "kt_store_last_fault": "pp",
    "kt_store_drop": "p",
    "kt_store_resize": "pp",
    "kt_store_foresee": "pppiq",
    "kt_store_foretell": "ppq",
    "kt_store_seed": "pqdi",
    "kt_store_warm": "ppq",
    "kt_store_tokens": "pp",
    "kt_predict": "ppiqqp",
    "kt_stream_experts": "ppiqpqpip",
    "kt_stream_linear": "pqqppiqpip",
    "kt_stream_rows": "ppqppqp",
    "kt_crc32c": "ipq",
    "kt_crc32c_tables": "ipq",
    "kt_pool_open": "",
    "kt_pool_close": "p",
    "kt_pool_copy": "p",
    "kt_pool_count": "pp",
    "kt_pool_declare": "pqpq",
    "kt_pool_sequence": "p",
    "kt_pool_fork": "pq",
    "kt_pool_free": "pq",
    "kt_pool_crop": "pqq",
    "kt_pool_length": "pqq",
    "kt_pool_table": "pqpq",
    "kt_pool_reserve": "pppqq",
    "kt_pool_append": "pqppqppq",
    "kt_pool_read": "pqqqqpp",
    "kt_pool_gather": "pqpqqpp",
    "kt_pool_trim": "pq",
    "kt_rms_norm": "ppqp",
    "kt_activate": "ippqp",
    "kt_rotate": "ppqqp",
    "kt_attend": "pqqqppppip",
    "kt_attend_pool": "pqpppqppp",
    "kt_heads_product": "pqpqp",
    "kt_route": "ppqppp",
    "kt_gate": "ppqqp",
    "kt_program_check": "pp",
    "kt_program_run": "ppqqp",
    "kt_program_next": "pqqdp",
    "kt_choose": "ppqdp",
}
# What is not an int32 of enum kt_status, or nothing.
_RESULTS = {
    "kt_pool_open": "p",
    "kt_pool_copy": "p",
    "kt_pool_sequence": "q",
    "kt_pool_fork": "q",
    "kt_pool_length": "q",
    "kt_pool_table": "q",
    "kt_pool_trim": "q",
}


@dataclass(frozen=True)
class State:
    """What became of the library: loaded, or the reason why it cannot be used."""

    handle: ctypes.CDLL | None
    reason: str | None


@lru_cache(maxsize=1)
def state() -> State:
    """Load the library at the first call.

    Raises:
        UnsupportedError: KTITAN_CPU_ISA or KTITAN_THREADS has a value that means nothing.
    """
    cap, count = _isa_cap(), thread_count()
    reason = _missing_reason(LIBRARY, BUILD_NOTE)
    if reason is not None:
        return State(None, reason)
    found = open_library(LIBRARY)
    if found.handle is not None:
        found.handle.kt_cap_isa(cap)
        found.handle.kt_set_threads(count)
    return found


def loaded() -> ctypes.CDLL:
    """The library.

    Raises:
        HardwareError: it cannot be used here; `native_reason()` says so without raising.
    """
    found = state()
    if found.handle is None:
        raise HardwareError(f"the native CPU library is {found.reason}", str(LIBRARY), _REBUILD)
    return found.handle


def open_library(path: Path) -> State:
    """Load the library at `path` and declare its functions; a reason when it is stale or cannot be loaded."""
    try:
        handle = ctypes.CDLL(str(path))
    except OSError as error:
        return State(None, f"not loadable: {error}; {_REBUILD}")
    try:
        version = handle.kt_abi_version()
    except AttributeError:
        return State(None, f"not ktitan's: {path} has no kt_abi_version; {_REBUILD}")
    if version != ABI:
        return State(None, f"stale: its interface is version {version}, this ktitan needs {ABI}; {_REBUILD}")
    _declare(handle)
    return State(handle, None)


def built_isa() -> str:
    """The highest instruction set that the library has kernels for."""
    return ISAS[loaded().kt_built_isa()]


def isa() -> str:
    """The instruction set that computes now."""
    return ISAS[loaded().kt_isa()]


@contextmanager
def use_isa(name: str) -> Iterator[str]:
    """Compute with the instruction set `name`, or the best one below it that is there, while the block runs.

    Yields the name of what is used. It holds for the whole process; the results have the same bits, so only tests and
    benchmarks need it.

    Raises:
        UnsupportedError: there is no such instruction set.
    """
    if name not in ISAS:
        raise UnsupportedError(f"instruction set {name!r}", remedy=f"use one of: {', '.join(ISAS)}")
    handle = loaded()
    before = handle.kt_isa()
    try:
        yield ISAS[handle.kt_set_isa(ISAS.index(name))]
    finally:
        handle.kt_set_isa(before)


def threads() -> int:
    """Threads that a call may use, the caller's included."""
    return int(loaded().kt_threads())


def set_threads(count: int) -> None:
    """Use `count` threads from the next call on, the caller's included; 1 starts none.

    Raises:
        UnsupportedError: `count` is not between 1 and 1024.
    """
    loaded().kt_set_threads(checked_count(count))


def checked_count(count: int) -> int:
    """`count`, when threads can be so many.

    Raises:
        UnsupportedError: it is not between 1 and 1024.
    """
    if not 1 <= count <= 1024:
        raise UnsupportedError(f"{count} threads", remedy="use 1 to 1024 threads, best one for each CPU")
    return count


def _isa_cap() -> int:
    name = env.CPU_ISA.read().lower()
    if name not in ISAS:
        raise UnsupportedError(f"instruction set {name!r}", env.CPU_ISA.name, f"set it to one of: {', '.join(ISAS)}")
    return ISAS.index(name)


def thread_count() -> int:
    """Threads of a call: KTITAN_THREADS, else the CPUs that this process may keep busy.

    Raises:
        UnsupportedError: KTITAN_THREADS is no number from 1 to 1024.
    """
    text = env.THREADS.read()
    if not text:
        return min(detect_cpu().usable_cpus, 1024)
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise UnsupportedError(f"{text!r} threads", env.THREADS.name, "set it to a number from 1 to 1024, or unset it")
    return int(text)


def _missing_reason(path: Path, note: Path) -> str | None:
    """Why there is no library to load, or None when there is one."""
    if platform.machine() not in _MACHINES:
        return f"not built: there are kernels for x86-64 only, and this machine is {platform.machine() or 'unknown'}"
    if path.is_file():
        return None
    try:
        why, _, messages = note.read_text(encoding="utf-8").strip().partition("\n")
    except OSError:
        return "not built: the package was installed without running its build"
    return f"not built: {why}; the compiler's messages are in {note}" if messages else f"not built: {why}"


def _declare(handle: ctypes.CDLL) -> None:
    """Give every function its argument types, and its result where that is no int32."""
    kinds: dict[str, Any] = {
        "p": ctypes.c_void_p,
        "q": ctypes.c_int64,
        "i": ctypes.c_int32,
        "s": ctypes.c_char_p,
        "d": ctypes.c_double,
    }
    for name, letters in _SIGNATURES.items():
        getattr(handle, name).argtypes = [kinds[letter] for letter in letters]
    for name, letter in _RESULTS.items():
        getattr(handle, name).restype = kinds[letter]
