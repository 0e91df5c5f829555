"""The CPU kernels: whether the native library is there, what it computes with, and why."""

from __future__ import annotations

from ktitan import env
from ktitan.doctor.finding import Finding
from ktitan.errors import UnsupportedError
from ktitan.hardware import detect_cpu
from ktitan.native import library

__all__ = ["kernels"]


def kernels() -> list[Finding]:
    """Library, instruction sets built and used, threads, and the variables that are set."""
    settings = [Finding(name, value) for name, value in env.settings().items()]
    try:
        state, count = library.state(), library.thread_count()
    except UnsupportedError as error:
        return [*settings, Finding(error.where, error.message, "error", error.remedy)]
    threads = Finding("threads", f"{count} ({_threads_reason()})")
    if state.reason is not None:
        remedy = "kernels of numba compute instead, slower: reinstall with a C++ compiler, or from a wheel for x86-64"
        return [Finding("native library", state.reason, "warning", remedy), threads, *settings]
    built, used = library.built_isa(), library.isa()
    names = library.ISAS[: library.ISAS.index(built) + 1]
    return [
        Finding("native library", f"loaded, interface {library.ABI}"),
        Finding("built for", ", ".join(names)),
        Finding("computes with", f"{used} ({_isa_reason(used, built)})"),
        threads,
        *settings,
    ]


def _isa_reason(used: str, built: str) -> str:
    if used == env.CPU_ISA.read().lower() and used != library.ISAS[-1]:
        return f"{env.CPU_ISA.name} allows no more"
    if used == built:
        return "the highest that is built" if used != library.ISAS[-1] else "the highest there is"
    return "the highest of this processor"


def _threads_reason() -> str:
    if env.THREADS.read():
        return f"set by {env.THREADS.name}"
    cpu = detect_cpu()
    return f"usable CPUs of {cpu.logical_cpus}; {cpu.physical_cores} cores"
