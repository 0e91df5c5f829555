"""Where compiled kernels are kept, and that nothing needs such a place."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("numba", reason="numba is not installed, so nothing is compiled")
from numba.core import config

from ktitan.native import numba_jit


@pytest.fixture
def chosen(monkeypatch):
    """Sets numba's cache folder as a user would, and forgets what was decided before."""

    def choose(folder):
        monkeypatch.setattr(config, "CACHE_DIR", str(folder))
        numba_jit.cache_folder.cache_clear()

    yield choose
    numba_jit.cache_folder.cache_clear()


def add(a, b):
    return a + b


def test_kernels_are_kept_under_a_digest_of_their_sources(chosen, tmp_path):
    chosen(tmp_path / "new")
    folder = numba_jit.cache_folder()
    assert folder.parent == tmp_path / "new"
    assert folder.name.startswith("ktitan-numba-")
    assert numba_jit.jit(add)(2, 3) == 5
    assert [path.suffix for path in sorted(folder.rglob("*.nb*"))] == [".nbc", ".nbi"]
    assert str(tmp_path / "new") == config.CACHE_DIR


def test_without_a_folder_everything_still_compiles(chosen, tmp_path):
    (tmp_path / "file").write_text("in the way")
    chosen(tmp_path / "file")
    assert numba_jit.cache_folder() is None
    assert numba_jit.jit(add)(2, 3) == 5


def test_a_user_without_a_home(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(numba_jit.Path, "home", no_home)
    assert numba_jit._home_cache() == []


def test_threads_that_compile_at_once_keep_numba_s_setting(chosen, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chosen(tmp_path / "kept")
    folder, interval = numba_jit.cache_folder(), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            made = list(pool.map(lambda _: numba_jit.jit(lambda a: a + 1), range(200)))
    finally:
        sys.setswitchinterval(interval)
    assert len(made) == 200 and folder.is_dir()
    assert str(tmp_path / "kept") == config.CACHE_DIR
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
