"""Step programs: an injected model as one flat list of native operations, with calls of modules where it must be."""

from __future__ import annotations

from ktitan.program.build import NoProgram, build_program
from ktitan.program.run import StepProgram

__all__ = ["NoProgram", "StepProgram", "build_program"]
