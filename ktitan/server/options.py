"""What the server was asked for."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass

from ktitan.errors import Fault, UnsupportedError

__all__ = ["ServerOptions"]


@dataclass(frozen=True)
class ServerOptions:
    """Options of the server.

    Attributes:
        host: name or address to listen on.
        port: 0 takes a free one.
        api_keys: keys of which a client must send one; empty for none.
        no_auth: serve without a key on an address that others can reach.
        cors_origins: origins whose pages may call the server; "*" is every one.
        queue_limit: requests that may wait; the one that runs is not counted.
        body_limit_bytes: largest request body.
        chunk_tokens: tokens of the prompt in one forward pass: a client who leaves is noticed between two;
            None: as planned.
        heartbeat_seconds: a stream that has nothing to say for so long sends a comment.
        shutdown_seconds: after the first signal, answers that run may take so long.
        context_tokens: longest prompt and answer together; None: what the model and the KV budget allow.
        access_log: one line for each request.
        prompt_cache: keep what was read, for prompts that begin alike.

    Raises:
        UnsupportedError: the combination is not safe or not possible; all faults at once.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = ()
    no_auth: bool = False
    cors_origins: tuple[str, ...] = ()
    queue_limit: int = 32
    body_limit_bytes: int = 10_000_000
    chunk_tokens: int | None = None
    heartbeat_seconds: float = 5.0
    shutdown_seconds: float = 10.0
    context_tokens: int | None = None
    access_log: bool = False
    prompt_cache: bool = True

    def __post_init__(self) -> None:
        faults = [*self._auth_faults()]
        for origin in self.cors_origins:
            if origin != "*" and (not origin.startswith(("http://", "https://")) or origin.count("/") != 2):
                remedy = "write it as a browser sends it, for example https://chat.example.org"
                faults.append(Fault(f"{origin!r} is not an origin", "--cors", remedy))
        if not math.isfinite(self.shutdown_seconds):
            faults.append(Fault("that is no time", f"--shutdown-seconds {self.shutdown_seconds}", "give seconds"))
        if self.body_limit_bytes < 1:
            faults.append(Fault("no request would fit", f"--max-body {self.body_limit_bytes}", "give 10MB, say"))
        if faults:
            raise UnsupportedError.from_faults(faults)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def _auth_faults(self) -> list[Fault]:
        faults = []
        if not self.is_loopback and not self.api_keys and not self.no_auth:
            remedy = "give --api-key (or KTITAN_API_KEY), or say --no-auth"
            faults.append(
                Fault("others can reach this address, and no key is asked for", f"--host {self.host}", remedy)
            )
        if self.api_keys and self.no_auth:
            faults.append(Fault("a key is given, and --no-auth", "--no-auth", "give one of them"))
        if any(not key.isascii() or not key.isprintable() or not key or " " in key for key in self.api_keys):
            # The key itself is a secret and stays out of the message.
            faults.append(
                Fault(
                    "a key is empty or has characters that no header can carry", "--api-key", "use letters and digits"
                )
            )
        return faults
