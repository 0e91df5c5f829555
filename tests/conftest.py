"""Shared by all tests: one thread (the models are tiny), no network, and where the trained checkpoints lie."""

import os
from pathlib import Path

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start
torch.set_num_threads(1)


def pytest_collection_modifyitems(items):
    """GPU tests run where there is one."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the source tree."""
    return REPOSITORY


@pytest.fixture(scope="session")
def tiny_gguf() -> Path:
    """The trained tiny MoE that the repository carries (DeepSeek-V3 architecture, Q4_K_M)."""
    return REPOSITORY / "examples" / "models" / "tiny-dsv3.Q4_K_M.gguf"


@pytest.fixture(scope="session")
def fixtures_dir() -> Path:
    """A folder with `models/` and `fixtures/`: trained checkpoints and other tools' figures for them."""
    folder = os.environ.get("KTITAN_FIXTURES")
    if not folder:
        pytest.skip("KTITAN_FIXTURES is not set")
    return Path(folder)
