"""A small HTTP client for tests of the server: the wire as it is, with no library between."""

import http.client
import json
import socket
import struct
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

from ktitan.server.listen import bind
from ktitan.server.options import ServerOptions
from ktitan.server.run import make_server
from ktitan.server.service import Service

QUICK = {"port": 0, "shutdown_seconds": 0.3}


@contextmanager
def serving(model, tokenizer, name="/models/tiny-echo", **options):
    """A server in a thread of this process, on a port of its own; yields a `Client`."""
    settings = ServerOptions(**{**QUICK, **options})
    listener = bind(settings.host, settings.port)
    port = listener.getsockname()[1]
    service = Service(model, tokenizer, name, settings)
    server = make_server(service)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        wait_for(lambda: server.started)
        yield Client(port, service, server, thread)
    finally:
        server.stop()
        thread.join(10)
    assert not thread.is_alive()


def wait_for(condition, seconds=5.0):
    """Wait until `condition()` holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.005)


class Client:
    """Requests to one server."""

    def __init__(self, port, service, server, thread):
        self.port, self.service, self.server, self.thread = port, service, server, thread
        self.url = f"http://127.0.0.1:{port}"
        self.model = service.engine._model

    def request(self, method, path, body=None, headers=None):
        """Status, headers, text and parsed JSON of one response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        data = body if isinstance(body, bytes | type(None)) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **(headers or {})}
        connection.request(method, path, data, {name: value for name, value in sent.items() if value is not None})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        is_json = response.headers.get("content-type") == "application/json"
        return SimpleNamespace(
            status=response.status, headers=response.headers, text=text, json=json.loads(text) if is_json else None
        )

    def get(self, path, **headers):
        return self.request("GET", path, headers=headers)

    def chat(self, text="hi", **fields):
        """A chat completion; `text` may be a list of messages."""
        return self.request("POST", "/v1/chat/completions", self.chat_body(text, **fields))

    def chat_body(self, text="hi", **fields):
        messages = text if isinstance(text, list) else [{"role": "user", "content": text}]
        return {"messages": messages, **fields}

    def complete(self, prompt, **fields):
        return self.request("POST", "/v1/completions", {"prompt": prompt, **fields})

    def stream(self, path="/v1/chat/completions", **body):
        """Data and comments of a whole stream; `[DONE]` stays text."""
        answer = self.request("POST", path, {**body, "stream": True})
        assert answer.status == 200, answer.text
        return parse_events(answer.text)

    def open(self, body, path="/v1/chat/completions"):
        """A raw socket on which a request was sent."""
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        raw.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        return raw

    def wait_idle(self, seconds=5.0):
        """Wait until nothing runs and nothing waits."""
        engine = self.service.engine
        wait_for(lambda: engine.running is None and not len(engine.queue), seconds)


def parse_events(text):
    """`data` objects, comments, and raw data lines of a stream of events."""
    events = [event for event in text.split("\n\n") if event]
    data = [event.removeprefix("data: ") for event in events if event.startswith("data: ")]
    comments = [event.removeprefix(": ") for event in events if event.startswith(": ")]
    assert len(data) + len(comments) == len(events)
    return SimpleNamespace(data=[json.loads(one) for one in data if one != "[DONE]"], comments=comments, raw=data)


def joined(events, field="content", index=0):
    """One field of all deltas of an answer."""
    choices = [choice for chunk in events.data for choice in chunk.get("choices", ()) if choice["index"] == index]
    return "".join(choice.get("delta", choice).get(field) or "" for choice in choices)


def reset(raw):
    """Close a connection with a RST instead of a FIN."""
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()
