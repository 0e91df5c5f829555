"""What the server knows of streamed weights: figures since the start and of late, for /tiers and the page."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ktitan.api import Figures

__all__ = ["Streaming"]

# Figures of late cover at least this time, however often somebody looks.
_SPAN_SECONDS = 1.0


class Streaming:
    """Reads the counters of the model's handle, which needs no lock and waits for no call.

    Args:
        handle: `model.ktitan`, or None.
    """

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._seen: tuple[float, Mapping[str, Any]] | None = None
        self._recent: Figures | None = None

    def counters(self) -> dict[str, Any] | None:
        """The raw counters now; None where nothing is streamed."""
        return None if self._handle is None else self._handle.store_stats()

    def recent(self, counters: Mapping[str, Any]) -> Figures | None:
        """Figures up to now, or up to a moment ago; None at the first look.

        Args:
            counters: as they are now.
        """
        now = time.monotonic()
        if self._seen is None:
            self._seen = (now, counters)
        elif now - self._seen[0] >= _SPAN_SECONDS:
            self._recent = Figures.between(self._seen[1], counters, now - self._seen[0])
            self._seen = (now, counters)
        return self._recent

    def report(self, counters: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Both as plain data, by the names of `Figures`; None where nothing is streamed.

        Args:
            counters: as they are now.

        Returns:
            total: figures since the model was loaded.
            recent: of late; None at the first look.
        """
        if counters is None:
            return None
        recent = self.recent(counters)
        total = Figures.between(None, counters, self._handle.store_seconds)
        return {"total": total.as_dict(), "recent": None if recent is None else recent.as_dict()}
