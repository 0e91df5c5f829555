"""Errors as OpenAI's clients expect them: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from ktitan.errors import BudgetError, KtitanError, UnsupportedError

__all__ = ["ApiError", "add_handlers", "as_api_error", "error_response", "to_json"]

log = logging.getLogger("ktitan.server")

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES = {404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}


class ApiError(HTTPException):
    """What a client is told.

    Attributes:
        status_code: HTTP status.
        detail: what is wrong, in one sentence.
        param: the field at fault.
        code: a word for programs.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """The object that goes over the wire."""
        kind = _TYPES.get(self.status_code, "invalid_request_error" if self.status_code < 500 else "server_error")
        return {"error": {"message": self.detail, "type": kind, "param": self.param, "code": self.code}}


def to_json(value: Any) -> bytes:
    """Compact JSON in UTF-8; half a surrogate pair, which a client may have sent, becomes an escape again."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


def error_response(error: ApiError) -> Response:
    """`error` as a whole response."""
    return Response(to_json(error.body()), error.status_code, dict(error.headers or {}), "application/json")


def as_api_error(error: BaseException) -> ApiError:
    """What a client is told of `error`; a fault's own text may hold what is not theirs to know, and is logged only."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, KtitanError):
        where = error.faults[0].where
        param = where if where.partition("[")[0].replace("_", "").isalnum() else None
        message = "; ".join(f"{fault.message} ({fault.remedy})" for fault in error.faults)
        status = 400 if isinstance(error, UnsupportedError | BudgetError) else 500
        return ApiError(status, message, param, error.code)
    log.error("a request failed", exc_info=error)
    return ApiError(500, f"the engine failed: {type(error).__name__}; its log says more", code="engine_failed")


def add_handlers(app: FastAPI) -> None:
    """Make every error of `app` leave in this shape."""

    async def on_http(_: Request, error: Exception) -> Response:
        if isinstance(error, ApiError):
            return error_response(error)
        status, detail = getattr(error, "status_code", 500), getattr(error, "detail", "")
        return error_response(
            ApiError(status, str(detail), code=_CODES.get(status), headers=getattr(error, "headers", None))
        )

    async def on_invalid(request: Request, error: Exception) -> Response:
        return error_response(_invalid(request, error.errors() if isinstance(error, RequestValidationError) else []))

    async def on_ktitan(_: Request, error: Exception) -> Response:
        return error_response(as_api_error(error))

    async def on_fault(_: Request, error: Exception) -> Response:
        return error_response(ApiError(500, f"the server failed: {type(error).__name__}", code="server_failed"))

    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(KtitanError, on_ktitan)
    app.add_exception_handler(Exception, on_fault)


def _invalid(request: Request, faults: Any) -> ApiError:
    """One error for all fields that are wrong; `param` is the first of them."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return ApiError(400, "the body must be JSON, sent with Content-Type: application/json", code="invalid_json")
    lines, fields = [], []
    for fault in faults:
        place = [str(part) for part in fault["loc"][1:]]
        if fault["type"] == "json_invalid":
            return ApiError(
                400, f"the body is not JSON: {fault['ctx']['error']} at {'.'.join(place)}", code="invalid_json"
            )
        fields.append(place[0] if place else None)
        lines.append(f"{'.'.join(place) or 'body'}: {fault['msg']}")
    return ApiError(400, "; ".join(lines[:8]), fields[0] if fields else None, "invalid_value")
