"""Runs the application until a signal ends it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn

from ktitan.server.app import make_app
from ktitan.server.connection import Connection
from ktitan.server.options import ServerOptions
from ktitan.server.service import Service

__all__ = ["Server", "make_server", "serve_model"]

# Beyond the time that answers have: for cancelled streams to send their last event.
_LAST_WORDS_SECONDS = 2


class Server(uvicorn.Server):
    """uvicorn's server with our signals: the first one drains, the second one exits at once.

    Args:
        config: uvicorn's.
        service: what is served.
    """

    should_exit: bool

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Remember the loop, and start."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle SIGINT and SIGTERM while the server runs; uvicorn's own would raise them again at the end."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        """Stop accepting, and end what runs within the time that the options give; from any thread."""
        if self.should_exit:
            return
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.service.engine.drain, self.service.options.shutdown_seconds)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self.should_exit:
            os._exit(128 + number)
        self.stop()


def make_server(service: Service) -> Server:
    """The server for a bound socket: `make_server(service).run(sockets=[listener])`."""
    # Its lines hold query strings, where some clients put their keys.
    logging.getLogger("uvicorn.access").disabled = True
    config = uvicorn.Config(
        make_app(service),
        http=Connection,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(service.options.shutdown_seconds) + _LAST_WORDS_SECONDS,
    )
    return Server(config, service)


def serve_model(
    model: Any,
    tokenizer: Any,
    name: str,
    options: ServerOptions,
    listener: socket.socket,
    ready: Callable[[], None],
    ended: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        model, tokenizer: what `ktitan.load` returns.
        name: MODEL as the user called it.
        options: what the server was asked for.
        listener: from `ktitan.server.listen.bind`.
        ready: called when the service is made and the server is about to listen.
        ended: called when it listens no more, while a forward pass may still run.
    """
    _route_logs()
    service = Service(model, tokenizer, name, options)
    ready()
    try:
        make_server(service).run(sockets=[listener])
    finally:
        ended()
    if service.engine.running is not None:
        # A forward pass that does not end would hold up Python's exit for as long as it likes.
        model.ktitan.end_recording()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)


def _route_logs() -> None:
    """uvicorn's lines go where ktitan's go, at ktitan's level."""
    ours, theirs = logging.getLogger("ktitan"), logging.getLogger("uvicorn.error")
    theirs.handlers, theirs.propagate = ours.handlers, False
    theirs.setLevel(max(ours.getEffectiveLevel(), logging.WARNING))
