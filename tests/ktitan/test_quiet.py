"""ktitan talks to nobody and writes nowhere: a local model never opens a socket, and a loaded one writes no file.

Python's audit hook sees what Python does; what C code does by itself was looked at once with strace (see the commit).
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.fake_hub import FakeHub, read_folder, running_hub
from support.tiny_models import save_tiny
from support.tiny_tokenizer import tiny_tokenizer
from support.watched import STARTS

WATCHED = Path(__file__).parents[1] / "support" / "watched.py"


def watch(folder, *steps, **variables):
    """Run steps ("api=MODEL") in a process whose home, cache and temporary folder are in `folder`; what was seen."""
    for name in ("home", "tmp", "work"):
        (folder / name).mkdir(exist_ok=True)
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "XDG_", "TORCH"))}
    homes = {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1"}
    report = folder / "report.json"
    subprocess.run(
        [sys.executable, "-B", "-P", str(WATCHED), str(report), *steps],
        env={**plain, **homes, **variables},
        cwd=folder / "work",
        check=True,
        capture_output=True,
        timeout=200,
    )
    return [tuple(row) for row in json.loads(report.read_text())]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    save_tiny("llama", folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@dataclass
class Watched:
    """What was seen of one process, its folders, and what the hub was asked."""

    seen: list
    folder: Path
    hub: FakeHub

    def rows(self, *steps, phases=("load", "run")):
        """What was seen in these steps, without their names."""
        return [row[2:] for row in self.seen if row[0].startswith(steps) and row[1] in phases]


@pytest.fixture(scope="module")
def watched(tmp_path_factory, model_folder, tiny_gguf):
    """A folder, a GGUF, the demo and a model on the hub are loaded and asked in one process."""
    folder = tmp_path_factory.mktemp("quiet")
    steps = [f"api={model_folder}", f"plan={model_folder}", f"chat={tiny_gguf}", "chat=demo", "api=org/tiny"]
    with running_hub() as hub:
        hub.add("org/tiny", read_folder(model_folder))
        seen = watch(folder, *steps, HF_ENDPOINT=hub.url, HF_HOME=str(folder / "hf"))
        yield Watched(seen, folder, hub)


LOCAL = ("api=/", "plan=/", "chat=")


def test_what_must_not_be_done_would_be_seen(tmp_path):
    seen = watch(tmp_path, "noisy=file")
    events = {row[2] for row in seen if row[1] == "run"}
    assert {"write", "os.rename", "socket.connect", "subprocess.Popen"} <= events


def test_a_local_model_opens_no_socket_and_starts_no_program(watched):
    assert [row for row in watched.rows(*LOCAL) if row[0].startswith("socket.") or row[0] in STARTS] == []


def test_loading_writes_at_most_into_the_temporary_folder(watched):
    # torch, imported by transformers, makes an empty folder there, and Python tries whether it may write.
    assert [row for row in watched.rows(*LOCAL) if not row[1].startswith(str(watched.folder / "tmp"))] == []
    left = [path for path in watched.folder.rglob("*") if path.is_file() and watched.folder / "hf" not in path.parents]
    assert left == [watched.folder / "report.json"]


def test_a_loaded_model_writes_nothing_and_talks_to_nobody(watched):
    assert watched.rows("api", "plan", "chat", phases=["run"]) == []


def test_a_model_from_the_hub_talks_to_the_hub_alone_and_writes_into_its_cache(watched):
    rows = watched.rows("api=org")
    addresses = {row[1] for row in rows if row[0] == "socket.connect"}
    assert addresses and all(f", {watched.hub.server.server_port}" in one for one in addresses)
    wrote = [row[1] for row in rows if row[0] == "write"]
    allowed = (str(watched.folder / "hf"), str(watched.folder / "tmp"))
    assert wrote and [path for path in wrote if not path.startswith(allowed)] == []
