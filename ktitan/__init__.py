"""ktitan turns a stock transformers model into a streaming engine, by rules."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ktitan.env import rest_openmp
from ktitan.errors import (
    BudgetError,
    FormatError,
    HardwareError,
    IoError,
    KtitanError,
    PlanError,
    RuleError,
    UnsupportedError,
    WeightError,
)

if TYPE_CHECKING:
    from ktitan.api import PromptCache, load, optimize_and_load, plan_model, stream
    from ktitan.operator import Operator, OperatorConfig
    from ktitan.registry import register_operator
    from ktitan.verify import verify_model

__version__ = "0.1.0"

__all__ = [
    "BudgetError",
    "FormatError",
    "HardwareError",
    "IoError",
    "KtitanError",
    "Operator",
    "OperatorConfig",
    "PlanError",
    "PromptCache",
    "RuleError",
    "UnsupportedError",
    "WeightError",
    "load",
    "optimize_and_load",
    "plan_model",
    "register_operator",
    "stream",
    "verify_model",
]

rest_openmp()

# Everything that imports torch is found on first use, so that `ktitan --help` answers at once.
_LATER = {
    "PromptCache": "ktitan.api",
    "load": "ktitan.api",
    "optimize_and_load": "ktitan.api",
    "plan_model": "ktitan.api",
    "stream": "ktitan.api",
    "Operator": "ktitan.operator",
    "OperatorConfig": "ktitan.operator",
    "register_operator": "ktitan.registry",
    "verify_model": "ktitan.verify",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'ktitan' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
