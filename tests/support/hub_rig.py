"""huggingface_hub pointed at the fake hub and an empty cache, in this process or in one that a test starts."""

import os
import subprocess
import sys

import pytest
from huggingface_hub import constants

from support.fake_hub import running_hub


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A fake hub that this process uses; `hub.cache` is the cache's folder."""
    with running_hub() as fake:
        fake.home = tmp_path / "hf"
        fake.cache = fake.home / "hub"
        monkeypatch.setattr(constants, "ENDPOINT", fake.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", fake.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(fake.cache))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(fake.home / "token"))
        monkeypatch.setattr(constants, "AGENT_HARNESSES_PATH", str(fake.home / "harnesses.json"), raising=False)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield fake


@pytest.fixture
def offline(monkeypatch):
    """A switch that takes the network away from huggingface_hub."""
    return lambda: monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def hub_variables(fake, **changes):
    """The environment of a process that uses `fake`."""
    plain = {name: value for name, value in os.environ.items() if name not in ("HF_TOKEN", "HF_HUB_OFFLINE")}
    return {**plain, "HF_ENDPOINT": fake.url, "HF_HOME": str(fake.home), "OMP_NUM_THREADS": "1", **changes}


def run_ktitan(fake, *words, **changes):
    """`ktitan WORDS` as a process of its own."""
    command = [sys.executable, "-P", "-m", "ktitan.cli.main", *words]
    return subprocess.run(command, env=hub_variables(fake, **changes), capture_output=True, text=True, timeout=120)
