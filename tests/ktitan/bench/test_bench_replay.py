"""`ktitan bench replay`: JSON lines, a table, a picture, and what is refused."""

import builtins
import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from ktitan.bench.replay_plot import check_plot
from ktitan.cli.main import app
from ktitan.errors import UnsupportedError
from ktitan.tiers.trace import Trace, load_trace, save_trace

run = CliRunner().invoke


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    random = np.random.default_rng()
    topk = np.argsort(random.random((2, 300, 8)) * random.random(8), axis=2)[..., :2].astype(np.uint8)
    predicted = np.argsort(random.random((2, 300, 8)), axis=2)[..., :4].astype(np.int16)
    weights, ids = np.ones(topk.shape, np.float16), np.array([1, 2], np.int32)
    path = tmp_path_factory.mktemp("trace") / "t.npz"
    save_trace(path, Trace(topk, weights, np.array([0, 100, 300], np.int32), ids, 8, predicted, "a[b]c"))
    return path


def test_json_lines_name_ceiling_and_peer(trace):
    done = run(app, ["bench", "replay", str(trace), "--slots", "50%,3", "--policy", "lru,lfu", "--json"])
    about, *lines = (json.loads(line) for line in done.stdout.splitlines())
    assert about["trace"]["layers"] == 2 and about["trace"]["sequences"] == 2
    cases = {line["case"]: line for line in lines if line["metric"].startswith("hit rate")}
    for size in ("50%", "3"):
        best, lfu = cases[f"replay-{size}-belady-bypass"], cases[f"replay-{size}-lfu"]
        assert lfu["ceiling"] == best["value"] and lfu["peer"] == "lru"
        assert lfu["share_of_ceiling"] == pytest.approx(lfu["value"] / best["value"], rel=1e-4)
        assert lfu["peer_value"] == cases[f"replay-{size}-lru"]["value"]
    assert {line["case"] for line in lines} >= {"foreseen-all", "foreseen-between", "foreseen-misses-of-lru-with-50%"}


def test_the_table_has_every_policy(trace):
    done = run(app, ["bench", "replay", str(trace), "--slots", "50%", "--policy", "lru,slru", "--scope", "global"])
    assert all(word in done.stdout for word in ("a[b]c", "belady-bypass", "slru", "4 guesses", "from dense"))


def test_a_name_does_not_drive_the_terminal(trace, tmp_path):
    save_trace(tmp_path / "t.npz", replace(load_trace(trace), model="\x1b[31mred"))
    done = run(app, ["bench", "replay", str(tmp_path / "t.npz"), "--slots", "50%", "--policy", "lru"])
    assert done.exit_code == 0 and "\x1b" not in done.stdout and r"\x1b[31mred" in done.stdout


def test_a_picture_is_drawn(trace, tmp_path):
    pytest.importorskip("matplotlib")
    out = tmp_path / "hits.svg"
    done = run(app, ["bench", "replay", str(trace), "--slots", "2,4,8", "--policy", "lru", "--plot", str(out)])
    assert done.exit_code == 0
    text = out.read_text("utf-8")
    assert text.lstrip().startswith("<?xml") and len(text) > 5000


def test_a_picture_without_matplotlib_has_a_remedy(monkeypatch, tmp_path):
    plain = builtins.__import__

    def missing(name, *rest):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return plain(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UnsupportedError, match=r"ktitan\[plot\]"):
        check_plot(tmp_path / "hits.png")
    with pytest.raises(UnsupportedError, match=r"\.svg"):
        check_plot(tmp_path / "hits.txt")


def test_bad_input_is_told(trace, tmp_path):
    (tmp_path / "x").write_bytes(b"x")
    for arguments, error in (
        ([str(tmp_path / "x")], "FormatError"),
        ([str(trace), "--slots", "9"], "UnsupportedError"),
        ([str(trace), "--policy", "mru"], "UnsupportedError"),
        ([str(trace), "--scope", "world"], "UnsupportedError"),
        ([str(trace), "--slots", "nan%"], "UnsupportedError"),
        ([str(trace), "--plot", str(tmp_path / "none" / "hits.svg")], "IoError"),
    ):
        done = run(app, ["bench", "replay", *arguments])
        assert done.exit_code == 2 and error in done.stderr
