"""Counts every response, and writes an access line where that was asked for."""

from __future__ import annotations

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ktitan.server.metrics import Metrics

__all__ = ["Records"]

log = logging.getLogger("ktitan.server.access")


class Records:
    """Middleware. A line holds method, path and status: no query, no header, no key.

    Args:
        app: what is recorded.
        metrics: where responses are counted, by route.
        access_log: write a line for each.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, access_log: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._access_log = access_log
        if access_log:  # asked for, whatever level the rest has
            log.setLevel(logging.INFO)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and note what was answered."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.monotonic(), 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            # Only routes get a name here: whatever strangers ask for must not fill the memory with labels.
            path = getattr(scope.get("route"), "path", "other")
            self._metrics.count_request(path, status)
            if self._access_log:
                seconds = time.monotonic() - started
                log.info("%s %r %d %.3f s", scope["method"], scope["path"], status, seconds)
