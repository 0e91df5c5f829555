"""Collects what the rules of a file mean here where that is not the same; equal remarks share a line."""

from __future__ import annotations

from ktitan.rules.nodes import Location
from ktitan.rules.ruleset import Note

__all__ = ["Remarks"]


class Remarks:
    """The remarks so far, in the order in which each was first made."""

    def __init__(self) -> None:
        self._places: dict[str, dict[Location, None]] = {}

    def add(self, message: str, location: Location) -> None:
        """Note that `message` holds for what stands at `location`."""
        self._places.setdefault(message, {})[location] = None

    def notes(self) -> tuple[Note, ...]:
        """Each remark once, with all its places."""
        return tuple(Note(message, tuple(places)) for message, places in self._places.items())
