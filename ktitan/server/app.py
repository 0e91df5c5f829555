"""The routes."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from starlette.responses import FileResponse, Response

import ktitan
from ktitan.server.chat import chat_choices, chat_form
from ktitan.server.completions import completion_choices, completion_form
from ktitan.server.errors import ApiError, add_handlers, to_json
from ktitan.server.guard import Guard
from ktitan.server.page_files import HEADERS, PAGE
from ktitan.server.records import Records
from ktitan.server.reply import reply
from ktitan.server.schemas import ChatRequest, CompletionRequest
from ktitan.server.service import ALIASES, Service

__all__ = ["make_app"]

_ERROR = {"description": "An error in OpenAI's shape: {error: {message, type, param, code}}."}
_ERRORS: dict[int | str, dict[str, Any]] = {status: _ERROR for status in (400, 401, 403, 404, 413, 429, 500, 503)}


def make_app(service: Service) -> FastAPI:
    """The application; its lifespan starts and ends the service's engine."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
        service.engine.start()
        yield
        await service.engine.close(seconds=1)
        service.close()

    # Without docs_url: FastAPI's pages of documentation load their scripts from elsewhere.
    app = FastAPI(
        title="ktitan", version=ktitan.__version__, lifespan=lifespan, docs_url=None, redoc_url=None, responses=_ERRORS
    )
    add_handlers(app)
    _add_completions(app, service)
    _add_facts(app, service)
    open_paths = {"/health", *_add_page(app)}
    app.add_middleware(Guard, options=service.options, open_paths=open_paths)
    if service.options.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(service.options.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
            expose_headers=["Retry-After", "X-Request-Id", "X-Ktitan-Ignored"],
        )
    app.add_middleware(Records, metrics=service.metrics, access_log=service.options.access_log)
    return app


def _add_completions(app: FastAPI, service: Service) -> None:
    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request, body: ChatRequest) -> Response:
        """Answer a conversation."""
        service.check_name(body.model)
        choices = await service.encode(partial(chat_choices, service, body))
        form = chat_form(service, body, len(choices))
        return await reply(request, service, body, choices, len(choices[0].prompt_ids), form)

    @app.post("/v1/completions")
    async def completions(request: Request, body: CompletionRequest) -> Response:
        """Continue texts, or fill in their middle."""
        service.check_name(body.model)
        choices = await service.encode(partial(completion_choices, service, body))
        form = await service.encode(partial(completion_form, service, body, len(choices)))
        prompt_tokens = sum(len(choice.prompt_ids) for choice in choices[:: body.n or 1])
        return await reply(request, service, body, choices, prompt_tokens, form)


def _add_facts(app: FastAPI, service: Service) -> None:
    created = int(time.time())
    card = {"id": service.id, "object": "model", "created": created, "owned_by": "ktitan", "aliases": [*ALIASES]}
    if service.context.tokens is not None:
        card["context_tokens"] = service.context.tokens

    @app.get("/v1/models")
    async def models() -> Response:
        """The one model."""
        return _json({"object": "list", "data": [card]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        """The model by any of its names."""
        service.check_name(name)
        return _json(card)

    @app.get("/health")
    async def health() -> Response:
        """Whether requests are taken."""
        if not service.engine.is_serving:
            raise ApiError(503, "the server is stopping", code="stopping")
        return _json({"status": "ok"})

    @app.get("/tiers")
    async def tiers() -> Response:
        """Used bytes and budgets of VRAM, RAM and NVMe, the queue, and the speed."""
        return _json({"model": service.id, "context_tokens": service.context.tokens, **service.tiers.report()})

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        """Figures for Prometheus."""
        text, kind = service.metrics.text(request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": kind})


def _json(value: Any) -> Response:
    return Response(to_json(value), media_type="application/json", headers={"Cache-Control": "no-store"})


def _add_page(app: FastAPI) -> set[str]:
    """Serve the files of the page, each by a route of its own, and index.html at /; the paths."""
    if not (PAGE / "index.html").is_file():
        return set()
    files = {f"/{path.relative_to(PAGE).as_posix()}": path for path in sorted(PAGE.rglob("*")) if path.is_file()}
    files["/"] = PAGE / "index.html"
    for route, path in files.items():
        respond = partial(FileResponse, path, headers=HEADERS)
        app.add_api_route(route, _page_route(respond), methods=["GET", "HEAD"], include_in_schema=False)
    return set(files)


def _page_route(respond: Any) -> Any:
    async def file() -> Response:
        response: Response = respond()
        return response

    return file
