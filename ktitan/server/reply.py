"""From a job to a response, in one piece or as server-sent events; a client who leaves ends the job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ktitan.server.answer import Choice
from ktitan.server.errors import ApiError, error_response, to_json
from ktitan.server.events import Delta, Done, Event, Finish, Heartbeat, Prefill
from ktitan.server.forms import Form
from ktitan.server.guard import client_of
from ktitan.server.job import Job
from ktitan.server.schemas import CommonRequest
from ktitan.server.service import Service

__all__ = ["reply"]


async def reply(
    request: Request, service: Service, body: CommonRequest, choices: Sequence[Choice], prompt_tokens: int, form: Form
) -> Response:
    """Queue the work and answer as `body` asks.

    Raises:
        ApiError: the queue is full, the server is stopping, or the work failed before anything was sent.
    """
    job = Job(client_of(request.scope), choices, prompt_tokens)
    service.engine.submit(job)
    headers = {"X-Request-Id": form.id, **_ignored(body)}
    if body.stream:
        return _EventStream(service, job, form, body.include_usage, headers)
    watcher = asyncio.create_task(_watch(request.receive, service, job))
    try:
        events = await job.collect()
    except ApiError as error:
        return error_response(error)
    finally:
        watcher.cancel()
        service.engine.leave(job)
    return Response(to_json(form.whole(events)), media_type="application/json", headers=headers)


def _ignored(body: CommonRequest) -> dict[str, str]:
    """A header that names the fields which nobody looked at: a typing error would otherwise stay unseen."""
    names = [name[:40] for name in body.ignored[:20] if name.replace("_", "").isalnum() and name.isascii()]
    return {"X-Ktitan-Ignored": ", ".join(names)} if names else {}


async def _watch(receive: Receive, service: Service, job: Job) -> None:
    """Cancel the job when the client's connection ends."""
    while (await receive())["type"] != "http.disconnect":
        pass
    service.engine.cancel(job)


class _EventStream(Response):
    """Server-sent events; heartbeats and progress are comments, which clients skip."""

    media_type = "text/event-stream"

    def __init__(self, service: Service, job: Job, form: Form, wants_usage: bool, headers: dict[str, str]) -> None:
        super().__init__(headers={**headers, "Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        # The length is not known; without one the body goes out in chunks.
        del self.headers["content-length"]
        self._service, self._job, self._form, self._wants_usage = service, job, form, wants_usage

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the job or the client ends."""
        watcher = asyncio.create_task(_watch(receive, self._service, self._job))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async with aclosing(self._lines()) as lines:
                async for line in lines:
                    await send({"type": "http.response.body", "body": line, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            watcher.cancel()
            self._service.engine.leave(self._job)

    async def _lines(self) -> AsyncGenerator[bytes, None]:
        service = self._service
        for chunk in self._form.opening():
            yield _data(chunk)
        if ahead := service.engine.ahead(self._job):
            yield _comment(f"queued behind {ahead}")
        try:
            async with aclosing(self._job.read(service.options.heartbeat_seconds, service.engine.ahead)) as events:
                async for event in events:
                    for line in self._lines_of(event):
                        yield line
        except ApiError as error:
            yield _data(error.body())

    def _lines_of(self, event: Event) -> list[bytes]:
        if isinstance(event, Delta):
            return [_data(self._form.delta(event))]
        if isinstance(event, Prefill):
            return [_comment(f"prefill {event.done_tokens}/{event.total_tokens}")]
        if isinstance(event, Heartbeat):
            return [_comment(event.note)]
        if isinstance(event, Finish):
            return [_data(self._form.finish(event))]
        if isinstance(event, Done):
            usage = [_data(self._form.usage(event.usage))] if self._wants_usage else []
            return [*usage, b"data: [DONE]\n\n"]
        return []


def _data(value: Any) -> bytes:
    return b"data: " + to_json(value) + b"\n\n"


def _comment(text: str) -> bytes:
    return f": {text}\n\n".encode()
