"""A connection that does not say what it wants is closed; uvicorn waits for it without end."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["Connection"]


class Connection(H11Protocol):
    """uvicorn's connection, with a limit for the head of a request.

    Anyone may connect, so connections without an end would take all descriptors before a key is asked for.

    Attributes:
        head_seconds: time for a request's line and headers, from the connection or its first byte on.
    """

    head_seconds: float = 30.0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the clock."""
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(self.head_seconds, transport.close)

    def data_received(self, data: bytes) -> None:
        """Stop the clock when a head is whole, start it with the next one."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_clock()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop_clock()
        super().connection_lost(exc)

    def _stop_clock(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
