"""What a request must pass before any route sees it: the host it means, its key, the size of its body."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ktitan.server.errors import ApiError, error_response
from ktitan.server.options import ServerOptions

__all__ = ["Guard", "client_of"]

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


def client_of(scope: Scope) -> str:
    """Whose turn in the queue a request takes: its key and address together."""
    client: str = scope["ktitan_client"]
    return client


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()


class Guard:
    """Middleware.

    A server on the loopback address answers to loopback names only, so that a web page whose name was rebound to
    127.0.0.1 cannot talk to it.

    Args:
        app: what is guarded.
        options: keys, host and the body's limit.
        open_paths: paths that need no key.
    """

    def __init__(self, app: ASGIApp, options: ServerOptions, open_paths: Collection[str]) -> None:
        self._app = app
        self._keys = [_digest(key) for key in options.api_keys]
        self._hosts = {*_LOOPBACK_NAMES, options.host, f"[{options.host}]"} if options.is_loopback else None
        self._limit = options.body_limit_bytes
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._check_host(headers.get("host"))
            key = self._check_key(scope["path"], headers.get("authorization", ""))
            self._check_length(headers.get("content-length"))
        except ApiError as error:
            await error_response(error)(scope, receive, send)
            return
        address = scope["client"][0] if scope.get("client") else ""
        scope["ktitan_client"] = f"{key}@{address}"
        await self._app(scope, self._counted(receive), send)

    def _check_host(self, host: str | None) -> None:
        if self._hosts is None or host is None:
            return
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if name.lower().removesuffix(".") not in self._hosts:
            raise ApiError(403, "this server answers to localhost and 127.0.0.1 only", "Host", "host_not_allowed")

    def _check_key(self, path: str, authorization: str) -> int:
        """Which key was sent; -1 where none is needed."""
        if not self._keys or path in self._open_paths:
            return -1
        scheme, _, key = authorization.partition(" ")
        sent = _digest(key.strip())
        # All keys are compared, whichever fits, so that the time tells nothing.
        matches = [hmac.compare_digest(sent, known) for known in self._keys]
        if scheme.lower() != "bearer" or not any(matches):
            message = "a valid key is needed: send it as Authorization: Bearer KEY"
            raise ApiError(401, message, "Authorization", "invalid_api_key", {"WWW-Authenticate": "Bearer"})
        return matches.index(True)

    def _check_length(self, length: str | None) -> None:
        if length is not None and length.isdecimal() and int(length[:20]) > self._limit:
            raise self._too_large()

    def _counted(self, receive: Receive) -> Receive:
        """`receive` that gives up as soon as a body without a length turns out too large."""
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._limit:
                raise self._too_large()
            return message

        return counted

    def _too_large(self) -> ApiError:
        # The rest of the body is not read, so the connection cannot be used again.
        message = f"the body is larger than {self._limit} bytes"
        return ApiError(413, message, "body", "request_too_large", {"Connection": "close"})
