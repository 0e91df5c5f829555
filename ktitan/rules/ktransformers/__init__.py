"""Rule files of KTransformers (a list at the top, `generate_device`, `prefill_op`, ...) as rules of version 1.

What one of their operators is here stands in `operators`; `convert` says what the two kinds of files mean in another
way. Written for v0.3.2, the last version whose product was injection (https://github.com/kvcache-ai/ktransformers).
"""

from __future__ import annotations

from ktitan.rules.ktransformers.convert import convert
from ktitan.rules.ktransformers.writer import to_yaml

__all__ = ["convert", "to_yaml"]
