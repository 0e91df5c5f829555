"""What users, the command line and the chat call."""

from __future__ import annotations

from ktitan.api.checksums import native_faults
from ktitan.api.importing import import_rules
from ktitan.api.loading import load, optimize_and_load
from ktitan.api.locate import locate as locate_model
from ktitan.api.placing import ALL_LAYERS, PlacedRules
from ktitan.api.planning import plan_model
from ktitan.api.threads import set_threads
from ktitan.engine.conversation import Conversation, encode_rendered, encode_text, render_messages
from ktitan.engine.detokenize import Detokenizer, StopStrings, skipped_ids
from ktitan.engine.generate import GenerationStats, end_ids, generate_steps, generate_tokens, new_cache, stream
from ktitan.engine.prompt_cache import PromptCache
from ktitan.engine.room import context_tokens
from ktitan.engine.sampling import Sampling
from ktitan.engine.steps import PromptProgress, Token
from ktitan.plan.write import to_rules
from ktitan.tiers import format_bytes
from ktitan.tiers.figures import Figures
from ktitan.tiers.options import POLICIES

__all__ = [
    "ALL_LAYERS",
    "POLICIES",
    "Conversation",
    "Detokenizer",
    "Figures",
    "GenerationStats",
    "PlacedRules",
    "PromptCache",
    "PromptProgress",
    "Sampling",
    "StopStrings",
    "Token",
    "context_tokens",
    "encode_rendered",
    "encode_text",
    "end_ids",
    "format_bytes",
    "generate_steps",
    "generate_tokens",
    "import_rules",
    "load",
    "locate_model",
    "native_faults",
    "new_cache",
    "optimize_and_load",
    "plan_model",
    "render_messages",
    "set_threads",
    "skipped_ids",
    "stream",
    "to_rules",
]
