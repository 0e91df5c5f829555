"""`--profile`: the first run makes the file, the next one begins with it."""

from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from ktitan.cli.main import app
from ktitan.local_chat.loading import save_profile
from ktitan.local_chat.options import ChatOptions
from ktitan.tiers.profile import load_profile


def test_a_run_adds_to_the_profile(repository, tmp_path):
    model, path = repository / "examples" / "models" / "tiny-dsv3.Q4_K_M.gguf", tmp_path / "p"
    command = [
        "chat",
        str(model),
        "-p",
        "A cache is",
        "--max-new-tokens",
        "4",
        "--ram",
        "48MiB",
        "--profile",
        str(path),
    ]
    for sessions in (1, 2):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        assert load_profile(path).sessions == sessions


@pytest.mark.parametrize(("profile", "streams", "saved"), [("p", True, 1), (None, True, 0), ("p", False, 0)])
def test_it_is_saved_only_where_something_is_streamed(profile, streams, saved):
    calls = []
    handle = SimpleNamespace(store_stats=lambda: {} if streams else None, save_profile=lambda: calls.append(1))
    save_profile(SimpleNamespace(ktitan=handle), ChatOptions(model="m", load={"profile": profile}))
    assert len(calls) == saved
