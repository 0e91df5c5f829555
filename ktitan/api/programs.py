"""The step program of a loaded model: made at once where all weights are in memory, else when it is first asked for."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from ktitan.engine.generate import new_cache
from ktitan.inject import Handle
from ktitan.program import NoProgram, StepProgram, build_program

__all__ = ["offer_program"]

logger = logging.getLogger(__name__)


def offer_program(model: Any, handle: Handle) -> None:
    """Give the handle the model's program, and its plan a note on it.

    The program is compared with the modules on random tokens, which reads experts where they are streamed: there it is
    made for the first generation.
    """

    def make() -> StepProgram | None:
        made = build_program(model, lambda: new_cache(model))
        note = _note(made)
        handle.plan.notes.append(note)
        logger.info("%s", note)
        return made if isinstance(made, StepProgram) else None

    handle.offer_program(make)
    if handle.store_stats() is None:
        _ = handle.program


def _note(made: StepProgram | NoProgram) -> str:
    if isinstance(made, NoProgram):
        return f"steps run as modules: {made.reason}"
    called = Counter(made.reasons.values())
    why = "; ".join(f"{reason} ({count})" for reason, count in called.items())
    rest = f", with calls of {called.total()} modules between them: {why}" if called else ""
    return f"steps run as a program of {len(made.native.operations)} native operations{rest}"
