"""Regular expressions that users write, compiled with faults that say what is wrong and where."""

from __future__ import annotations

import re

from ktitan.rules.faultlog import FaultLog
from ktitan.rules.nodes import Location, shorten

__all__ = ["compile_regex"]


def compile_regex(pattern: str, location: Location, log: FaultLog) -> re.Pattern[str] | None:
    """The compiled pattern; a bad one is a fault that says where in it the mistake lies."""
    try:
        return re.compile(pattern)
    except re.error as error:
        place = "" if error.pos is None else f" at position {error.pos}: {shorten(pattern[error.pos :], 20)!r}"
        message = f"bad regex {shorten(pattern)!r}: {error.msg}{place}"
        globbed = "repeat" in error.msg
        remedy = (
            "it is a regex, not a glob: any text is .*" if globbed else "put \\ before a character that means itself"
        )
        log.add(location, message, remedy)
    except (OverflowError, RecursionError) as error:
        log.add(location, f"bad regex {shorten(pattern)!r}: {error}", "write it in a simpler way")
    return None
