"""Collects every fault of a set of rule files, so that all of them are reported at once."""

from __future__ import annotations

from collections.abc import Sequence

from ktitan.errors import Fault
from ktitan.rules.nodes import Location

__all__ = ["FaultLog"]


class FaultLog:
    """The faults found so far.

    Attributes:
        count: grows with every fault met, also with one that is already listed. A parser compares it before and after
            its work to learn whether what it made is whole.
    """

    def __init__(self) -> None:
        self.count = 0
        self._found: dict[Fault, Location] = {}

    def add(self, location: Location, message: str, remedy: str = "") -> None:
        """Note a fault; the same one at the same place (a YAML alias used twice) is listed once."""
        self.count += 1
        self._found.setdefault(Fault(message, str(location), remedy), location)

    def spoil(self) -> None:
        """Note that something faulty, reported before, was met again."""
        self.count += 1

    def faults(self, file_order: Sequence[str] = ()) -> tuple[Fault, ...]:
        """All faults, by file in `file_order` (other files last), then by line, then as they were found."""
        rank = {file: number for number, file in enumerate(file_order)}

        def place(item: tuple[Fault, Location]) -> tuple[int, int]:
            location = item[1]
            return rank.get(location.file, len(rank)), location.line

        return tuple(fault for fault, _ in sorted(self._found.items(), key=place))
