"""The socket: bound before the model is loaded, so that a port in use is known at once."""

from __future__ import annotations

import errno
import socket

from ktitan.errors import HardwareError, UnsupportedError

__all__ = ["bind", "url_of"]

# A reader who takes nothing for so long is cut off by the kernel, so that a stopped client cannot hold a connection.
_STALLED_MS = 60_000


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet: clients are refused until the server runs.

    Raises:
        UnsupportedError: the port is in use or not allowed.
        HardwareError: the address is not one of this machine's.
    """
    place = f"{host}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError, OverflowError) as error:
        raise HardwareError(f"the host is not known: {error}", place, "give an address of this machine") from error
    listener = socket.socket(family, kind, protocol)
    # Connections of a server that was killed a moment ago must not stop this one.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _STALLED_MS)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _refusal(error, place) from error
    return listener


def _refusal(error: OSError, place: str) -> UnsupportedError | HardwareError:
    if error.errno == errno.EADDRINUSE:
        return UnsupportedError("the port is in use", place, "end the other server, or choose another --port")
    if error.errno == errno.EACCES:
        return UnsupportedError("this port needs more rights", place, "choose a --port above 1023")
    return HardwareError(f"cannot listen there: {error.strerror}", place, "give an address of this machine as --host")


def url_of(listener: socket.socket) -> str:
    """Where clients find a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
