"""`--profile`: the first run makes the file, the next one begins with it."""

from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from ktitan.cli.main import app
from ktitan.local_chat.loading import save_profile
from ktitan.local_chat.options import ChatOptions
from ktitan.tiers.profile import load_profile


def run(repository, *options):
    """A short answer of the trained model; what stood on stderr."""
    model = repository / "examples" / "models" / "tiny-dsv3.Q4_K_M.gguf"
    command = ["chat", str(model), "-p", "A cache is", "--max-new-tokens", "4", *options]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    return done.stderr


def test_a_run_adds_to_the_profile(repository, tmp_path):
    path = tmp_path / "p"
    for sessions in (1, 2):
        assert "profile" not in run(repository, "--ram", "48MiB", "--profile", str(path))
        assert load_profile(path).sessions == sessions


def test_where_nothing_is_streamed_it_says_once_that_nothing_is_saved(repository, tmp_path, caplog):
    path = tmp_path / "p"
    run(repository, "--ram", "400MiB", "--profile", str(path))
    told = [one for one in caplog.records if "nothing is streamed" in one.getMessage()]
    assert [(one.levelname, one.name.split(".")[0]) for one in told] == [("WARNING", "ktitan")]
    assert f"{path} or saved" in told[0].getMessage() and not path.exists()


@pytest.mark.parametrize(("profile", "streams", "saved"), [("p", True, 1), (None, True, 0), ("p", False, 0)])
def test_it_is_saved_only_where_something_is_streamed(profile, streams, saved):
    calls = []
    handle = SimpleNamespace(store_stats=lambda: {} if streams else None, save_profile=lambda: calls.append(1))
    save_profile(SimpleNamespace(ktitan=handle), ChatOptions(model="m", load={"profile": profile}))
    assert len(calls) == saved
