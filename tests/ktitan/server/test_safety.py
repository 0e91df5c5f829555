"""Who may talk to the server: host names, keys, origins, sizes."""

import contextlib
import http.client
import json
import logging
import socket
import time

import pytest

from ktitan.errors import HardwareError, UnsupportedError
from ktitan.server.connection import Connection
from ktitan.server.listen import bind, url_of
from ktitan.server.options import ServerOptions

from support.echo_model import EchoModel
from support.serving import serving

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def locked(rig):
    """A server with two keys and one foreign origin."""
    options = {"api_keys": ("first-key", "second-key"), "cors_origins": ("https://chat.example.org",)}
    # Tests of commands leave a handler behind whose stream is closed.
    logger = logging.getLogger("ktitan")
    handlers, logger.handlers = logger.handlers, []
    with serving(EchoModel(), rig.byte_tokenizer(), access_log=True, **options) as client:
        yield client
    logger.handlers = handlers


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer wrong", "Basic first-key", "first-key", "Bearer \xe9"])
def test_without_a_valid_key_nothing_is_told(locked, header):
    for method, path in (("POST", CHAT), ("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/tiers"), ("GET", "/x")):
        answer = locked.request(method, path, {}, {"Authorization": header} if header is not None else {})
        assert (answer.status, answer.json["error"]["code"]) == (401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "first-key" not in answer.text


def test_any_of_the_keys_opens_and_health_needs_none(locked):
    for key in ("first-key", "second-key"):
        assert locked.get("/v1/models", Authorization=f"Bearer {key}").status == 200
    assert locked.get("/health").json == {"status": "ok"}


def test_keys_and_bodies_stay_out_of_the_log(locked, caplog):
    with caplog.at_level(logging.DEBUG):
        headers = {"Authorization": "Bearer second-key"}
        locked.request("POST", CHAT + "?api_key=second-key", locked.chat_body("a private word"), headers)
        locked.get("/v1/models", Authorization="Bearer wrong-key")
    assert "/v1/chat/completions" in caplog.text
    assert not any(word in caplog.text for word in ("second-key", "wrong-key", "private"))


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:99", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1:8080", 200),
        ("[::1]", 200),
        ("[::1]:8080", 200),
        ("evil.example.org", 403),
        ("evil.example.org:8080", 403),
        ("127.0.0.1.evil.example.org", 403),
        ("localhost.evil.example.org", 403),
        ("", 403),
    ],
)
def test_a_rebound_name_is_refused(echo, host, status):
    answer = echo.get("/v1/models", Host=host)
    assert answer.status == status
    assert status == 200 or answer.json["error"]["param"] == "Host"


def test_pages_of_other_origins_are_kept_out_unless_named(echo, locked):
    ask = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type,authorization"}
    foreign = {"Origin": "https://evil.example.org"}
    known = {"Origin": "https://chat.example.org"}
    for client, headers in ((echo, foreign), (echo, known), (locked, foreign)):
        answer = client.request("OPTIONS", CHAT, headers={**headers, **ask})
        assert "access-control-allow-origin" not in answer.headers
    answer = locked.request("OPTIONS", CHAT, headers={**known, **ask})
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, known["Origin"])
    # An error must be readable for the page, too.
    assert locked.get("/v1/models", **known).headers["access-control-allow-origin"] == known["Origin"]


def test_a_body_of_50_mb_is_refused_unread(echo):
    connection = http.client.HTTPConnection("127.0.0.1", echo.port, timeout=10)
    connection.putrequest("POST", CHAT)
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", str(50_000_000))
    connection.endheaders(b'{"messages": [')
    response = connection.getresponse()
    error = json.loads(response.read())["error"]
    assert (response.status, error["param"], error["code"]) == (413, "body", "request_too_large")
    assert response.headers["connection"] == "close"


def test_a_body_without_a_length_is_refused_once_it_is_too_large(echo):
    sent = 0

    def pieces():
        nonlocal sent
        while sent < 200 * 2**20:
            sent += 2**20
            yield b" " * 2**20

    connection = http.client.HTTPConnection("127.0.0.1", echo.port, timeout=10)
    with contextlib.suppress(OSError):  # the server closes its side
        connection.request("POST", CHAT, pieces(), {"Content-Type": "application/json"}, encode_chunked=True)
    assert sent < 100 * 2**20
    assert echo.chat("x").status == 200


def test_options_that_are_not_safe_are_refused_all_at_once():
    with pytest.raises(UnsupportedError) as caught:
        ServerOptions(host="0.0.0.0", cors_origins=("example.org", "https://a.org/x"))
    assert len(caught.value.faults) == 3
    with pytest.raises(UnsupportedError) as caught:
        ServerOptions(host="192.168.1.5", api_keys=("schl\xfcssel",), no_auth=True)
    assert "schl" not in str(caught.value)
    for safe in ({"host": "::1"}, {"host": "0.0.0.0", "no_auth": True}, {"host": "::", "api_keys": ("k",)}):
        ServerOptions(**safe)
    for host in ("127.0.0.1", "localhost", "::1", "127.9.9.9"):
        assert ServerOptions(host=host).is_loopback


def test_a_port_in_use_and_a_foreign_address_are_the_users_to_change():
    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        port = listener.getsockname()[1]
        assert url_of(listener) == f"http://127.0.0.1:{port}"
        with pytest.raises(UnsupportedError, match=f"{port}.*in use"):
            bind("127.0.0.1", port)
    with bind("127.0.0.1", port):
        pass
    for host in ("192.0.2.1", "no-such-host.invalid"):
        with pytest.raises(HardwareError):
            bind(host, 0)


def test_a_connection_that_sends_no_whole_head_is_closed(echo, monkeypatch):
    monkeypatch.setattr(Connection, "head_seconds", 0.2)
    for sent in (b"", b"GET /health HTTP/1.1\r\nX: "):
        with socket.create_connection(("127.0.0.1", echo.port), timeout=5) as raw:
            raw.sendall(sent)
            assert raw.recv(1) == b""
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection(("127.0.0.1", echo.port), timeout=5) as raw:
        for _ in range(3):  # one that speaks is kept, also between requests
            raw.sendall(head)
            answer = b""
            while not answer.endswith(b'{"status":"ok"}'):
                more = raw.recv(65536)
                assert more
                answer += more
            time.sleep(0.3)


@pytest.mark.parametrize("wrong", [{"shutdown_seconds": float("inf")}, {"body_limit_bytes": 0}])
def test_limits_that_no_server_can_hold_are_refused(wrong):
    with pytest.raises(UnsupportedError, match=r"--shutdown-seconds inf|--max-body 0"):
        ServerOptions(**wrong)
