"""Runs a scenario under an audit hook, and writes what it changed, started or connected to as JSON.

    python -P watched.py REPORT.json SCENARIO=MODEL...

Events are Python's own (https://docs.python.org/3/library/audit_events.html); what C code does by itself is not seen.
"""

import json
import os
import sys

CHANGES = {
    *("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown"),
    *("os.utime", "shutil.rmtree", "shutil.copyfile", "shutil.move", "sqlite3.connect", "os.setxattr"),
}
STARTS = {"subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

step, phase, seen = "", "load", []


def watch(event, args):
    if event == "open":
        path, mode, flags = args
        wanted = set(mode or "") & set("wax+") or (isinstance(flags, int) and flags & WRITING)
        if wanted and isinstance(path, str | bytes):
            seen.append((step, phase, "write", os.fsdecode(path)))
    elif event in CHANGES:
        seen.append((step, phase, event, *map(str, args[:2])))
    elif event in STARTS or event.startswith("socket."):
        seen.append((step, phase, event, *map(str, args[1:] if event.startswith("socket.") else args[:2])))


def loaded():
    """From here on the model is in memory."""
    global phase
    phase = "run"


def api(name):
    """Load, stream, generate and undo through the API."""
    import ktitan

    model, tokenizer = ktitan.load(name, device="cpu")
    loaded()
    "".join(ktitan.stream(model, tokenizer, "a prompt", max_new_tokens=4))
    model.generate(**tokenizer("abc", return_tensors="pt"), max_new_tokens=2)
    model.ktitan.undo()


def chat(name):
    """`ktitan chat`, as a terminal starts it."""
    import ktitan.local_chat.session as session

    start = session.Session.__init__
    session.Session.__init__ = lambda self, *args: (loaded(), start(self, *args))[1]
    command("chat", name, "-p", "hi", "--max-new-tokens", "3")
    session.Session.__init__ = start


def plan(name):
    """`ktitan plan`."""
    command("plan", name)


def command(*words):
    from ktitan.cli.main import app

    try:
        app(words, prog_name="ktitan")
    except SystemExit as end:
        if end.code:
            raise


def noisy(name):
    """Does all that must not be done, so that a test can see that it would be seen."""
    import socket
    import subprocess

    loaded()
    with open(name, "w"):
        pass
    os.rename(name, f"{name}.new")
    with socket.socket() as one:
        one.connect_ex(("127.0.0.1", 9))
    subprocess.run(["true"], check=True)


if __name__ == "__main__":
    # The report is opened before anybody watches.
    descriptor = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
    sys.addaudithook(watch)
    try:
        for step in sys.argv[2:]:  # a global, which the hook reads
            phase = "load"
            scenario, _, model = step.partition("=")
            globals()[scenario](model)
    finally:
        os.write(descriptor, json.dumps(seen).encode())
