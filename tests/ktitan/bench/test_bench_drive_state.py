import os
from pathlib import Path

import pytest

from ktitan.bench.drive_state import drop_cached, read_ahead


@pytest.fixture
def system(tmp_path):
    """A /sys that knows the device under the test's folder."""
    device = tmp_path.stat().st_dev
    folder = tmp_path / "sys" / "class" / "bdi" / f"{os.major(device)}:{os.minor(device)}"
    folder.mkdir(parents=True)
    (folder / "read_ahead_kb").write_text("8192\n")
    return tmp_path / "sys", folder / "read_ahead_kb"


def test_read_ahead_is_set_and_put_back(tmp_path, system):
    root, setting = system
    with read_ahead([tmp_path, tmp_path], root=root) as text:
        assert text == "read-ahead 128 KB" and setting.read_text() == "128"
    assert setting.read_text() == "8192"
    with pytest.raises(KeyError), read_ahead([tmp_path], root=root):
        raise KeyError
    assert setting.read_text() == "8192"


def test_who_may_not_set_it_is_told_what_it_is(tmp_path, system, monkeypatch):
    root, setting = system

    def refuse(self, *_):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "write_text", refuse)
    with read_ahead([tmp_path], root=root) as text:
        assert text == "read-ahead 8192 KB"
    assert setting.read_text() == "8192\n"


def test_a_file_system_without_a_device(tmp_path):
    with read_ahead([tmp_path], root=tmp_path) as text:
        assert text == "read-ahead unknown"


def test_the_cache_forgets_a_file_that_keeps_its_bytes(tmp_path):
    (tmp_path / "file").write_bytes(b"abc" * 5000)
    drop_cached([tmp_path / "file"])
    assert (tmp_path / "file").read_bytes() == b"abc" * 5000
