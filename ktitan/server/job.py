"""One request on its way through queue and model: events come from the model's thread, the event loop reads them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from ktitan.server.answer import Choice
from ktitan.server.errors import ApiError
from ktitan.server.events import Done, Event, Failed, Heartbeat, Prefill, Usage

__all__ = ["Job", "gone"]


class Job:
    """The answers that one request wants. Made, read and ended in the event loop; `emit` belongs to the model's thread.

    Attributes:
        client: whose turn it is in the queue.
        choices: the answers to make, in order.
        usage: tokens so far.
        stop_asked: set when nobody wants the rest; the model's thread looks at it between two forward passes.
        stats: figures of the answer that is being made (`ktitan.api.GenerationStats`).
        is_read: the reader has seen the end.
    """

    def __init__(self, client: str, choices: Sequence[Choice], prompt_tokens: int) -> None:
        self.client = client
        self.choices = tuple(choices)
        self.usage = Usage(prompt_tokens=prompt_tokens)
        self.stop_asked = threading.Event()
        self.stats: Any = None
        self.is_read = False
        self.queued_at = time.monotonic()
        self.started_at: float | None = None
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    def emit(self, event: Event) -> None:
        """Hand an event over; called in the model's thread."""
        self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    def end(self, event: Done | Failed) -> None:
        """Let nothing more be computed, and tell the reader why; called in the event loop."""
        self.stop_asked.set()
        self._events.put_nowait(event)

    async def read(self, heartbeat_seconds: float, waiting: Callable[[Job], int]) -> AsyncGenerator[Event, None]:
        """Events up to the end, with a `Heartbeat` whenever there was none for so long.

        Args:
            heartbeat_seconds: longest silence.
            waiting: called for the number of jobs ahead of this one.

        Raises:
            ApiError: the request failed.
        """
        note = "working"
        while True:
            try:
                event = await asyncio.wait_for(self._events.get(), heartbeat_seconds)
            except asyncio.TimeoutError:
                yield Heartbeat(f"queued behind {waiting(self)}" if self.started_at is None else note)
                continue
            self.is_read = isinstance(event, Failed | Done)
            if isinstance(event, Failed):
                raise event.error
            note = f"prefill {event.done_tokens}/{event.total_tokens}" if isinstance(event, Prefill) else "working"
            yield event
            if isinstance(event, Done):
                return

    async def collect(self) -> list[Event]:
        """All events of a request that is answered in one piece.

        Raises:
            ApiError: the request failed.
        """
        events: list[Event] = []
        while not events or not isinstance(events[-1], Done):
            events.append(await self._events.get())
            self.is_read = isinstance(events[-1], Failed | Done)
            if isinstance(events[-1], Failed):
                raise events[-1].error
        return events


def gone() -> ApiError:
    """What is told to a client that is not there any more."""
    return ApiError(499, "the client went away")
