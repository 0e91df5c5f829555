"""A model hub on 127.0.0.1 that answers what huggingface_hub asks of the real one, and logs every request.

Large files are redirected to another host name (`localhost`), as the real hub sends them to its storage. Faults are set
on the hub: `status` (every answer), `cuts` (connections that end early), `pause` (seconds before each piece).
Headers and routes: https://huggingface.co/docs/hub/api and huggingface_hub's `file_download.get_hf_file_metadata`.
"""

import hashlib
import json
import re
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

LFS_BYTES = 20_000  # from here on a file lies in "large storage"
PIECE = 16_384


@dataclass
class FakeRepo:
    """One repository: its files by commit, and which commit a branch or tag means."""

    files: dict = field(default_factory=dict)
    refs: dict = field(default_factory=dict)
    gated: bool = False

    def commit(self, files, ref="main"):
        """Put `files` (bytes by path) as a new commit at `ref`; its hash."""
        digest = hashlib.sha1(repr(sorted((path, hash(data)) for path, data in files.items())).encode()).hexdigest()
        self.files[digest] = dict(files)
        self.refs[ref] = digest
        return digest


class FakeHub:
    """Repositories behind `url`; `requests` has a "METHOD /path" of everything that was asked."""

    def __init__(self):
        self.repos, self.requests, self.ranges, self.leaked = {}, [], [], []
        self.status, self.cuts, self.pause, self.sha = None, {}, 0.0, None
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"hub": self}))
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.storage = f"http://localhost:{self.server.server_port}/storage"

    def add(self, name, files, **options):
        """A repository with one commit; `files` is a folder or bytes by path."""
        repo = self.repos[name] = FakeRepo(**options)
        repo.commit(read_folder(files) if not isinstance(files, dict) else files)
        return repo

    def asked(self, *methods):
        """The requests of these methods since the last call, and forget all."""
        found = [one for one in self.requests if not methods or one.split()[0] in methods]
        self.requests.clear()
        return found


def read_folder(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def running_hub():
    hub = FakeHub()
    thread = threading.Thread(target=hub.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.server.shutdown()
        hub.server.server_close()
        thread.join()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.answer()

    def do_HEAD(self):
        self.answer()

    def do_POST(self):
        self.answer()

    def answer(self):
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.hub.status is not None:
            return self.refuse(self.hub.status, "")
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree|paths-info)/(.+?))?/?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/(.+)", path)
        if path.startswith("/storage/"):
            return self.stored(path.rpartition("/")[2])
        if api:
            return self.describe(api[1], api[2], api[3] or "main", body)
        return self.resolve(file[1], file[2]) if file else self.refuse(404, "")

    def repo_at(self, name, revision):
        """The repository's files, or None after an error was sent."""
        repo = self.hub.repos.get(name)
        if repo is None:
            return self.refuse(401, "RepoNotFound")  # what the real one answers to those who are not logged in
        commit = repo.refs.get(revision, revision)
        if commit not in repo.files:
            return self.refuse(404, "RevisionNotFound")
        return repo, commit, repo.files[commit]

    def describe(self, name, kind, revision, body):
        found = self.repo_at(name, revision)
        if found is None:
            return None
        _, commit, files = found
        rows = [{"type": "file", "path": path, "size": len(data), "oid": sha1(data)} for path, data in files.items()]
        if kind == "paths-info":
            wanted = set(parse_qs(body.decode())["paths"])
            return self.send_json([row for row in rows if row["path"] in wanted])
        if kind == "tree":
            return self.send_json(rows)
        siblings = [{"rfilename": row["path"], "size": row["size"], "blobId": row["oid"]} for row in rows]
        return self.send_json({"id": name, "modelId": name, "sha": self.hub.sha or commit, "siblings": siblings})

    def resolve(self, name, rest):
        revision, _, path = rest.partition("/")
        found = self.repo_at(name, revision)
        if found is None:
            return None
        repo, commit, files = found
        if repo.gated and "authorization" not in {key.lower() for key in self.headers}:
            return self.refuse(403, "GatedRepo")
        if path not in files:
            return self.refuse(404, "EntryNotFound", {"X-Repo-Commit": commit})
        data = files[path]
        if len(data) < LFS_BYTES:
            return self.send(data, {"ETag": f'"{sha1(data)}"', "X-Repo-Commit": commit})
        digest = hashlib.sha256(data).hexdigest()
        linked = {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(data)), "X-Repo-Commit": commit}
        return self.send(b"", {**linked, "Location": f"{self.hub.storage}/{digest}"}, status=302)

    def stored(self, digest):
        if "authorization" in {key.lower() for key in self.headers}:
            self.hub.leaked.append(self.path)
        for repo in self.hub.repos.values():
            for files in repo.files.values():
                for path, data in files.items():
                    if hashlib.sha256(data).hexdigest() == digest:
                        return self.send(data, {"ETag": f'"{digest}"'}, cut=path)
        return self.refuse(404, "")

    def send(self, data, headers, status=200, cut=None):
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted and status == 200:
            self.hub.ranges.append((cut, int(wanted[1])))
            end = int(wanted[2]) + 1 if wanted[2] else len(data)
            headers = {**headers, "Content-Range": f"bytes {wanted[1]}-{end - 1}/{len(data)}"}
            data, status = data[int(wanted[1]) : end], 206
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.write(data, self.hub.cuts.pop(cut, None))

    def write(self, data, stop):
        try:
            for start in range(0, len(data) if stop is None else stop, PIECE):
                time.sleep(self.hub.pause)
                self.wfile.write(data[start : start + PIECE][: None if stop is None else stop - start])
        except (BrokenPipeError, ConnectionResetError):
            stop = 0
        if stop is not None:
            self.close_connection = True

    def send_json(self, value):
        self.send(json.dumps(value).encode(), {"Content-Type": "application/json"})

    def refuse(self, status, code, headers=None):
        self.send(b"", {**(headers or {}), **({"X-Error-Code": code} if code else {})}, status=status)


def sha1(data):
    return hashlib.sha1(data).hexdigest()
