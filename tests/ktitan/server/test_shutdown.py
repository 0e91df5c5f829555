"""Signals: what runs may finish within a stated time, what waits is refused, and nothing stays behind."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time

from ktitan.server import run
from ktitan.server.listen import bind

from support.echo_model import EchoModel
from support.serving import serving, wait_for


def test_what_runs_finishes_and_what_waits_is_refused(rig):
    model = EchoModel()
    model.delay = 0.01
    with serving(model, rig.byte_tokenizer(), shutdown_seconds=5) as client:
        engine = client.service.engine
        runs = client.open(client.chat_body("ab" * 20, stream=True))
        wait_for(lambda: engine.running is not None)
        waits = client.open(client.chat_body("cd"))
        wait_for(lambda: len(engine.queue) == 1)
        client.server.stop()
        wait_for(lambda: engine.is_draining)
        refused = read_all(waits)
        assert refused.startswith(b"HTTP/1.1 503")
        assert b'"code":"stopping"' in refused
        answer = read_all(runs)
        assert answer.count(b'{"content":') == 40
        assert b"[DONE]" in answer
        client.thread.join(5)
        assert not client.thread.is_alive()


def test_what_does_not_finish_in_time_is_told_so(rig):
    model = EchoModel()
    model.delay = 0.01
    with serving(model, rig.byte_tokenizer(), shutdown_seconds=0.2) as client:
        runs = client.open(client.chat_body("ab", stream=True, max_tokens=4000, ignore_eos=True))
        wait_for(lambda: client.service.engine.running is not None)
        client.server.stop()
        assert b'"code":"stopping"' in (answer := read_all(runs))
        assert b"[DONE]" not in answer


def test_threads_of_a_server_end_with_it(rig):
    before = set(threading.enumerate())
    with serving(EchoModel(), rig.byte_tokenizer()) as client:
        client.chat("x")
    wait_for(lambda: set(threading.enumerate()) <= before)


def test_a_second_signal_exits_at_once(rig, monkeypatch):
    codes = []
    monkeypatch.setattr(run.os, "_exit", codes.append)
    with serving(EchoModel(), rig.byte_tokenizer()) as client:
        client.server._on_signal(signal.SIGTERM, None)
        assert codes == []
        client.server._on_signal(signal.SIGINT, None)
    assert codes == [130]


def test_the_command_stops_on_sigterm_in_mid_answer(tiny_gguf):
    port = free_port()
    server = start(tiny_gguf, port)
    try:
        raw = open_stream(port, server)
        started = time.monotonic()
        server.send_signal(signal.SIGTERM)
        assert b'"code":"stopping"' in read_all(raw)
        assert server.wait(20) == 0
        assert time.monotonic() - started < 15
        bind("127.0.0.1", port).close()
        log = server.stderr.read()
        assert f"serving at http://127.0.0.1:{port}/v1" in log
        assert "Traceback" not in log
        assert server.stdout.read() == ""
    finally:
        server.kill()


HOLD = """
from ktitan.server.listen import bind
with bind("127.0.0.1", 0) as listener:
    listener.listen()
    print(listener.getsockname()[1], flush=True)
    connection = listener.accept()[0]
    connection.sendall(b"x")
    connection.recv(1)
"""


def test_a_killed_server_does_not_stop_the_next_one():
    server = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True)
    port = int(server.stdout.readline())
    with socket.create_connection(("127.0.0.1", port)) as raw:
        assert raw.recv(1) == b"x"
        server.kill()
        server.wait()
        with bind("127.0.0.1", port) as listener:
            listener.listen()


def free_port():
    with bind("127.0.0.1", 0) as listener:
        return listener.getsockname()[1]


def start(model, port):
    words = [sys.executable, "-m", "ktitan.cli.main", "serve", str(model), "--port", str(port)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*words, "--shutdown_seconds", "0.3"], **pipes)


def open_stream(port, server):
    """A connection on which a long answer has begun."""

    def connects():
        assert server.poll() is None, server.stderr.read()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_for(connects, seconds=60)
    body = json.dumps({"prompt": "a", "max_tokens": 2000, "ignore_eos": True, "stream": True}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    raw = socket.create_connection(("127.0.0.1", port), timeout=30)
    raw.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    seen = b""
    while b'"text":' not in seen:
        seen += raw.recv(65536)
    return raw


def read_all(raw):
    data = b""
    while piece := raw.recv(65536):
        data += piece
    return data
