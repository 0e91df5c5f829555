"""What users, the command line and the chat call."""

from __future__ import annotations

from ktitan.api.importing import import_rules
from ktitan.api.loading import load, optimize_and_load
from ktitan.api.locate import locate as locate_model
from ktitan.api.planning import plan_model
from ktitan.api.threads import set_threads
from ktitan.engine.conversation import Conversation
from ktitan.engine.generate import GenerationStats, generate_tokens, stream
from ktitan.plan.write import to_rules
from ktitan.tiers import format_bytes

__all__ = [
    "Conversation",
    "GenerationStats",
    "format_bytes",
    "generate_tokens",
    "import_rules",
    "load",
    "locate_model",
    "optimize_and_load",
    "plan_model",
    "set_threads",
    "stream",
    "to_rules",
]
