"""The only file that reads the environment: every variable with its default and effect."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["VARIABLES", "Variable", "cache_dir", "log_level"]


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
CACHE = Variable("KTITAN_CACHE", "~/.cache/ktitan", "folder for what ktitan makes once and keeps (manifests, kernels)")

VARIABLES = (LOG, CACHE)


def log_level() -> str:
    """Level name for the `ktitan` logger, upper case."""
    return LOG.read().upper()


def cache_dir() -> Path:
    """The folder for kept files; it is not created here."""
    return Path(CACHE.read()).expanduser()
