"""Tables of bad input: how to make it, and what must be said of it, by every door that it can come through."""

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import ktitan

from support.good_models import copied, save_folder, save_gguf, small_llama

NOBODY = 65534


@dataclass(frozen=True)
class Bad:
    """One row: a fault, how to make it, and the code, place and remedy that it must be given.

    Attributes:
        name: of the row.
        make: (good models, empty folder) -> what is given to the door.
        error: class of the error.
        where, message, remedy: patterns that one and the same fault must match.
        count: how many faults are reported at once.
    """

    name: str
    make: Callable[[SimpleNamespace, Path], Any]
    error: type[ktitan.KtitanError]
    where: str
    message: str
    remedy: str
    count: int = 1

    def describes(self, fault):
        """Whether the fault is the row's."""
        parts = ((self.where, fault.where), (self.message, fault.message), (self.remedy, fault.remedy))
        return all(re.search(pattern, text) for pattern, text in parts)


def load(given):
    """The widest door."""
    return ktitan.load(*given, device="cpu") if isinstance(given, tuple) else ktitan.load(given, device="cpu")


def plan(given):
    """The door that reads no weights."""
    path, gguf_path = given if isinstance(given, tuple) else (given, None)
    return ktitan.plan_model(path, gguf_path=gguf_path, device="cpu").check()


def assert_refused(bad, given, door):
    """The door raises the row's error, with code, place and remedy for every fault, and leaves no file open."""
    open_before = open_files()
    with pytest.raises(ktitan.KtitanError) as caught:
        door(given)
    error = caught.value
    assert type(error) is bad.error and error.code == bad.error.__name__, str(error)
    assert all(fault.where and fault.remedy for fault in error.faults), str(error)
    assert len(error.faults) == bad.count, str(error)
    assert any(
        re.search(bad.where, fault.where)
        and re.search(bad.message, fault.message)
        and re.search(bad.remedy, fault.remedy)
        for fault in error.faults
    ), str(error)
    assert open_files() == open_before


def open_files():
    """Targets of this process's open descriptors that are files."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.endswith((".safetensors", ".gguf", ".json", ".jinja", ".yaml")):
                found.append(target)
    return sorted(found)


def good_models(place):
    """One small model in every form."""
    return SimpleNamespace(
        folder=save_folder(place / "folder"),
        shards=save_folder(place / "shards", max_shard_size="40KB"),
        tied=save_folder(place / "tied", small_llama(tie_word_embeddings=True)),
        gguf=save_gguf(place / "model.gguf"),
    )


@dataclass(frozen=True)
class Edit:
    """Makers of rows: a good model of one kind, copied and broken."""

    kind: str = "folder"
    steps: tuple[Callable[[Path], Any], ...] = field(default=())

    def __call__(self, models, place):
        path = Path(copied(getattr(models, self.kind), place / f"model{getattr(models, self.kind).suffix}"))
        for step in self.steps:
            step(path)
        return path


def edit(*steps, kind="folder"):
    return Edit(kind, steps)


def json_edit(name, change):
    """A step that changes the object in a JSON file; `change` gets it and may return another value."""

    def step(folder):
        value = json.loads((folder / name).read_text())
        changed = change(value)
        (folder / name).write_text(json.dumps(value if changed is None else changed))

    return step


def config(**changes):
    """A step that changes config.json; `...` takes a key away."""
    return json_edit("config.json", lambda value: {k: v for k, v in {**value, **changes}.items() if v is not ...})


def write(name, content):
    """A step that puts bytes or text in place of a file."""

    def step(folder):
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return step


def tensors(change):
    """A step that changes what model.safetensors holds."""

    def step(folder):
        state = change(load_file(folder / "model.safetensors"))
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})

    return step


@contextlib.contextmanager
def without_rights():
    """The block runs with the rights of nobody, whom permission bits bind (root they do not)."""
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@contextlib.contextmanager
def open_folder():
    """A temporary folder that everybody may enter (pytest's are their owner's alone)."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def readable(path):
    """Let everybody read what is at `path`."""
    for one in [path, *path.rglob("*")] if path.is_dir() else [path]:
        one.chmod(0o755)
    return path
