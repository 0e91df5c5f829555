"""Where NVRTC is looked for; a library of two lines stands in for it."""

import shutil
import subprocess
from types import SimpleNamespace

import pytest

from ktitan.native import nvrtc

SOURCE = "int nvrtcVersion(int *major, int *minor) { *major = 13; *minor = 1; return 0; }"


@pytest.fixture
def packages(monkeypatch, tmp_path):
    """The folder of the `nvidia` packages; no other place has the library."""
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(nvrtc.importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(nvrtc.ctypes.util, "find_library", lambda name: None)
    (tmp_path / "cu13/lib").mkdir(parents=True)
    return tmp_path


def test_none(packages):
    assert nvrtc.nvrtc_version() is None


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no compiler")
def test_the_packaged_one_after_what_does_not_load(packages):
    folder = packages / "cu13/lib"
    (folder / "libnvrtc.so.12").write_bytes(b"not a library")
    (folder / "libnvrtc.so.13.alt").write_bytes(b"not looked at")
    (folder / "x.c").write_text(SOURCE, "utf-8")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "libnvrtc.so.13", folder / "x.c"], check=True)
    assert nvrtc.nvrtc_version() == "13.1"
