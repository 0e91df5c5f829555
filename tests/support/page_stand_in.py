"""A server with the real one's interface and scripted answers, so that the page is tested without a model."""

import json
import queue
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
MODEL = "tiny-dsv3.Q4_K_M"


class StandIn:
    """What the server does next, and what it was asked.

    `script` holds the steps of an answer: a text piece; ("reasoning", text); ("comment", text); ("error", message);
    ("wait", event), at most ten seconds; ("break",) which ends the connection. `refusals` are given to the next
    questions instead: (status, message, headers).
    """

    def __init__(self, page: Path, headers: dict[str, str]):
        self.page, self.headers = page, headers
        self.script = ["Hello."]
        self.refusals = []
        self.key = None
        self.tiers = {}
        self.questions = []
        self.vanished = queue.Queue()  # one entry for each client that left in mid answer
        self.polls = 0

    def request(self) -> dict:
        """The body of the last question."""
        return self.questions[-1]


def streaming(stall=None, level=0, recall=None, policy=None):
    """What /tiers says of streams; `stall` is a share of late."""
    total = {"guess_level": level, "recall_of_misses": recall, "policy": policy}
    return {"total": total, "recent": None if stall is None else {**total, "stall_share": stall}}


def tiers(ram, hits=None, misses=None, rate=None, streams=None):
    """What /tiers says of a machine without GPU and 8 GiB for ktitan."""

    def tier(used, budget, **more):
        none = {"hits": None, "misses": None, "read_bytes_per_second": None}
        return {"used_bytes": used, "budget_bytes": budget, **none, **more}

    places = {
        "vram": tier(0, None),
        "ram": tier(ram, 8 * 2**30, hits=hits, misses=misses),
        "nvme": tier(0, None, read_bytes_per_second=rate),
    }
    return {"tiers": places, "streaming": streams, "queue": {"waiting": 0, "running": 0, "limit": 32}}


def chunk(delta: dict, finish: str | None = None) -> str:
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}) + "\n\n"


class Handler(BaseHTTPRequestHandler):
    """Serves what `stand_in` says."""

    stand_in: StandIn
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def give(self, status, body, kind="application/json", headers=()):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in {**self.stand_in.headers, **dict(headers)}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status, message, headers=()):
        self.give(status, json.dumps({"error": {"message": message}}).encode(), headers=headers)

    def welcome(self):
        known = self.stand_in.key is None or self.headers["Authorization"] == f"Bearer {self.stand_in.key}"
        if not known:
            self.refuse(401, "missing or wrong key")
        return known

    def do_GET(self):
        path = self.path.partition("?")[0].lstrip("/") or "index.html"
        file = self.stand_in.page / path
        if file.is_file():
            self.give(200, file.read_bytes(), TYPES.get(file.suffix, "text/plain"))
        elif path == "v1/models" and self.welcome():
            self.give(200, json.dumps({"data": [{"id": MODEL}]}).encode())
        elif path == "tiers" and self.welcome():
            self.stand_in.polls += 1
            self.give(200, json.dumps(self.stand_in.tiers).encode())
        elif path not in ("v1/models", "tiers"):
            self.refuse(404, "no such page")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.welcome():
            return
        self.stand_in.questions.append(body)
        if self.stand_in.refusals:
            self.refuse(*self.stand_in.refusals.pop(0))
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            self.answer(list(self.stand_in.script))
        except OSError:
            self.stand_in.vanished.put(body)

    def say(self, text):
        self.wfile.write(text.encode())
        self.wfile.flush()

    def answer(self, script):
        pieces = 0
        for step in script:
            kind, value = ("content", step) if isinstance(step, str) else (step[0], (*step, None)[1])
            pieces += kind == "content"
            if kind == "break":
                return
            if kind == "wait":
                self.wait(value)
            elif kind == "comment":
                self.say(f": {value}\n\n")
            elif kind == "error":
                self.say("data: " + json.dumps({"error": {"message": value}}) + "\n\n")
                return
            else:
                self.say(chunk({"reasoning_content" if kind == "reasoning" else kind: value}))
        self.say(chunk({}, "stop"))
        usage = {"prompt_tokens": 7, "completion_tokens": pieces, "total_tokens": 7 + pieces}
        self.say("data: " + json.dumps({"choices": [], "usage": usage}) + "\n\ndata: [DONE]\n\n")

    def wait(self, event):
        # Comments as the real server's heartbeat: writing is how a vanished client is noticed.
        for _ in range(200):
            if event.wait(0.05):
                return
            self.say(": waiting\n\n")


@contextmanager
def serve(stand_in: StandIn):
    """The address of a server that does what `stand_in` says."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"stand_in": stand_in}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
