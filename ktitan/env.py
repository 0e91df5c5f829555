"""The only file that reads the environment: every variable with its default and effect."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["CPU_ISA", "THREADS", "Variable", "log_level"]


@dataclass(frozen=True)
class Variable:
    """One environment variable that ktitan reads."""

    name: str
    default: str
    effect: str

    def read(self) -> str:
        """Its value, or the default when it is unset or empty."""
        return os.environ.get(self.name) or self.default


LOG = Variable("KTITAN_LOG", "warning", "level of ktitan's log lines on stderr: debug, info, warning or error")
CPU_ISA = Variable(
    "KTITAN_CPU_ISA", "avx512", "highest instruction set of CPU kernels: generic, avx2 or avx512; it only lowers"
)
THREADS = Variable("KTITAN_THREADS", "", "threads of CPU kernels; by default one for each CPU that may be used")


def log_level() -> str:
    """Level name for the `ktitan` logger, upper case."""
    return LOG.read().upper()
