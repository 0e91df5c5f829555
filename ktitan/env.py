"""The only file that reads the environment: every variable with its default and effect."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

__all__ = [
    "API_KEY",
    "CPU_ISA",
    "THREADS",
    "Variable",
    "given_variables",
    "log_level",
    "openmp_rests",
    "rest_openmp",
    "secret_values",
    "settings",
]


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
API_KEY = Variable(
    "KTITAN_API_KEY", "", "keys, with commas between them, of which `ktitan serve` asks for one; --api-key wins"
)


OPENMP_WAIT = Variable(
    "OMP_WAIT_POLICY",
    "",
    "what OpenMP's (so PyTorch's) idle threads do; unset and before torch is loaded, ktitan sets PASSIVE",
)
OPENMP_SPIN = Variable("GOMP_SPINCOUNT", "", "GNU OpenMP's own word for the same; where it is set, ktitan sets nothing")


_set_here: set[str] = set()


def rest_openmp() -> None:
    """Let OpenMP's idle threads sleep; only what is set before torch is loaded counts.

    By default they spin for a while after each parallel operation, on the cores that the CPU kernels want next: on 16
    cores that halved the speed of both.
    """
    if "torch" not in sys.modules and not OPENMP_WAIT.read() and not OPENMP_SPIN.read():
        os.environ[OPENMP_WAIT.name] = "PASSIVE"
        _set_here.add(OPENMP_WAIT.name)


def given_variables() -> dict[str, str]:
    """A copy of the environment without what ktitan itself set, for other programs."""
    return {name: value for name, value in os.environ.items() if name not in _set_here}


def openmp_rests() -> bool:
    """Whether OpenMP's threads were told what to do while they are idle, by ktitan or by the user."""
    return bool(OPENMP_WAIT.read() or OPENMP_SPIN.read())


def log_level() -> str:
    """Level name for the `ktitan` logger, upper case."""
    return LOG.read().upper()


def settings() -> dict[str, str]:
    """The variables of this file that are set, with their values."""
    known = [value for value in globals().values() if isinstance(value, Variable)]
    return {each.name: each.read() for each in known if os.environ.get(each.name) and each.name not in _set_here}


_SECRET_WORDS = {"TOKEN", "KEY", "APIKEY", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "CREDENTIALS"}


def secret_values() -> set[str]:
    """Values of variables that are secret by their names (`HF_TOKEN`, `AWS_SECRET_ACCESS_KEY`), to keep them out.

    Values of less than six characters ("1", "true") are switches and no secrets.
    """
    return {
        value for name, value in os.environ.items() if len(value) >= 6 and _SECRET_WORDS & set(name.upper().split("_"))
    }
