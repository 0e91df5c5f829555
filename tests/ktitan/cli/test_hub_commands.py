"""ktitan pull, list and rm over a cache that the fake hub filled."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from ktitan.cli.main import app

from support.gguf_files import describe, gguf_tensors, write_model
from support.hub_rig import hub, hub_variables, offline, run_ktitan  # noqa: F401
from support.tiny_models import save_tiny

PROBE = """
import sys
from ktitan.cli.main import app
for words in (["pull", "org/tiny"], ["list"], ["rm", "org/tiny", "--yes"]):
    try:
        app(words, prog_name="ktitan")
    except SystemExit as end:
        heavy = sorted({"torch", "transformers", "numba"} & set(sys.modules))
        sys.stderr.write(f"END {words[0]} {end.code} {heavy}\\n")
"""


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    """Files by repository: one in HuggingFace's format, one of two GGUF models, and others that ktitan cannot run."""
    folder = tmp_path_factory.mktemp("published")
    model = save_tiny("llama", folder / "tiny")
    architecture, metadata = describe(model.config)
    (folder / "gg").mkdir()
    for kind in ("q8_0", "f32"):
        write_model(folder / "gg" / f"m-{kind.upper()}.gguf", architecture, metadata, gguf_tensors(model), kind)
    bert = {"model_type": "bert", "architectures": ["BertModel"]}
    others = {"config.json": json.dumps(bert).encode(), "model.safetensors": b"x"}
    return {
        "org/tiny": {path.name: path.read_bytes() for path in (folder / "tiny").iterdir()},
        "org/gg": {path.name: path.read_bytes() for path in (folder / "gg").iterdir()},
        "org/bert": others,
    }


@pytest.fixture
def shop(hub, published):  # noqa: F811
    for name, files in published.items():
        hub.add(name, files)
    return hub


def call(*words, code=0, **options):
    result = CliRunner().invoke(app, words, **options)
    assert result.exit_code == code, result.output
    return result


def rows():
    return {row["model"]: row for row in json.loads(call("list", "--json").stdout)}


def test_an_empty_cache_says_so(shop):
    result = call("list")
    assert result.stdout == "" and f"is in {shop.cache}" in result.stderr and "ktitan pull" in result.stderr
    assert json.loads(call("list", "--json").stdout) == []


def test_pull_says_where_and_how_large(shop, published):
    first = call("pull", "org/tiny")
    folder, sizes = first.stdout.splitlines()
    size = sum(map(len, published["org/tiny"].values()))
    assert folder.startswith(f"{shop.cache}/models--org--tiny/snapshots/")
    assert sizes.startswith("org/tiny: 3 files, ") and sizes.endswith("of it new")
    report = json.loads(call("pull", "org/tiny", "--json").stdout)
    assert (report["path"], report["bytes"], report["downloaded_bytes"]) == (folder, size, 0)
    assert json.loads(call("pull", "org/gg:f32", "--json").stdout)["path"].endswith("/m-F32.gguf")


def test_pull_of_a_revision(shop, published):
    commit = shop.repos["org/tiny"].commit({**published["org/tiny"], "generation_config.json": b"{}"}, "dev")
    assert json.loads(call("pull", "org/tiny", "--revision", "dev", "--json").stdout)["commit"] == commit
    assert rows()["org/tiny@dev"]["commit"] == commit


def test_pull_refuses(shop):
    for words, text in (
        (["../tiny"], "not the name of a model"),
        (["org/tiny@a", "--revision", "b"], "two revisions"),
        (["org/none"], "the hub knows no such model"),
        (["org/gg"], "it holds 2 GGUF models: F32 ("),
    ):
        result = call("pull", *words, code=2)
        assert text in result.stderr and result.stdout == ""


def test_list_shows_what_runs_by_its_name(shop, published):
    for model in ("org/tiny", "org/gg:q8_0", "org/bert"):
        call("pull", model)
    found = rows()
    assert {name: (row["kind"], row["complete"], row["bytes"]) for name, row in found.items()} == {
        "org/tiny": ("safetensors", True, sum(map(len, published["org/tiny"].values()))),
        "org/gg:Q8_0": ("GGUF", True, len(published["org/gg"]["m-Q8_0.gguf"])),
    }
    assert found["org/tiny"]["revision"] == "main" and found["org/tiny"]["last_used"].startswith("20")
    table = call("list").stdout
    assert all(name in table for name in found) and "partial" not in table


def test_what_lacks_files_is_partial(shop, monkeypatch):
    from ktitan.hub.fetch import fetch
    from ktitan.hub.names import parse_name

    fetch(parse_name("org/tiny"), weights=False)
    assert not rows()["org/tiny"]["complete"] and "partial" in call("list").stdout
    call("pull", "org/tiny")
    assert rows()["org/tiny"]["complete"]


@pytest.mark.parametrize("broken", ["config.json", "model.safetensors.index.json"])
def test_list_survives_json_that_is_nested_too_deep(shop, published, broken):
    shop.add("org/deep", {**published["org/tiny"], "model.safetensors.index.json": b"{}"})
    call("pull", "org/tiny")
    call("pull", "org/deep", code=2)
    (snapshot,) = (shop.cache / "models--org--deep" / "snapshots").iterdir()
    (snapshot / broken).unlink(missing_ok=True)
    (snapshot / broken).write_bytes(b"[" * 100_000)
    assert rows()["org/tiny"]["complete"]


def test_rm_says_what_it_frees_and_needs_a_yes(shop):
    call("pull", "org/tiny")
    refused = call("rm", "org/tiny", code=2)
    assert "frees " in refused.stderr and "add --yes" in refused.stderr and rows()
    done = call("rm", "org/tiny", "--yes")
    assert "deleted org/tiny" in done.stderr and rows() == {}
    assert not (shop.cache / "models--org--tiny").exists()


@pytest.mark.parametrize(("answer", "left"), [("y\n", []), ("n\n", ["org/tiny"]), ("\n", ["org/tiny"])])
def test_rm_asks_on_a_terminal(shop, monkeypatch, answer, left):
    call("pull", "org/tiny")
    monkeypatch.setattr("ktitan.cli.remove.is_terminal", lambda: True)
    call("rm", "org/tiny", input=answer)
    assert list(rows()) == left


def test_rm_of_one_gguf_model_leaves_the_other(shop):
    from huggingface_hub import HFCacheInfo

    for tag in ("Q8_0", "F32"):
        call("pull", f"org/gg:{tag}")
    if not hasattr(HFCacheInfo, "delete_files"):
        assert "whole repositories only" in call("rm", "org/gg:Q8_0", "--yes", code=2).stderr
        return
    call("rm", "org/gg:q8_0", "--yes")
    assert list(rows()) == ["org/gg:F32"]
    call("rm", "org/gg/m-F32.gguf", "--yes")
    assert not (shop.cache / "models--org--gg").exists()


def test_rm_of_one_revision_leaves_what_the_other_shares(shop, published):
    call("pull", "org/tiny")
    commit = shop.repos["org/tiny"].commit({**published["org/tiny"], "generation_config.json": b"{}"}, "dev")
    call("pull", "org/tiny@dev")
    assert "frees 2 B" in call("rm", "org/tiny", "--revision", commit[:8], "--yes").stderr
    assert list(rows()) == ["org/tiny"] and rows()["org/tiny"]["complete"]


def test_rm_of_what_is_not_there_names_the_nearest(shop):
    call("pull", "org/tiny")
    assert "did you mean 'org/tiny'?" in call("rm", "org/tinny", "--yes", code=2).stderr
    assert "did you mean 'main'?" in call("rm", "org/tiny@mian", "--yes", code=2).stderr
    assert "not the name" in call("rm", "../..", "--yes", code=2).stderr
    (shop.cache / "models--org--broken").mkdir()
    (shop.cache / "models--org--halt" / "refs").mkdir(parents=True)
    (shop.cache / "models--org--halt" / "refs" / "main").write_text("0" * 40)
    (shop.cache / "models--org--halt" / "snapshots").mkdir()
    for name in ("org/broken", "org/halt"):
        assert "part of the cache is broken" in call("rm", name, "--yes", code=2).stderr
    assert "no such model" in call("rm", "org/broke", "--yes", code=2).stderr
    assert list(rows()) == ["org/tiny"]


def test_none_of_them_needs_torch(shop):
    ended = subprocess.run([sys.executable, "-c", PROBE], env=hub_variables(shop), capture_output=True, timeout=60)
    ends = [line for line in ended.stderr.decode().splitlines() if line.startswith("END")]
    assert ends == ["END pull 0 []", "END list 0 []", "END rm 0 []"]


def test_offline_pull_of_what_is_cached(shop):
    call("pull", "org/gg:Q8_0")
    shop.asked()
    found = run_ktitan(shop, "pull", "org/gg:Q8_0", "--json", HF_HUB_OFFLINE="1")
    assert json.loads(found.stdout)["downloaded_bytes"] == 0 and shop.asked() == []
    refused = run_ktitan(shop, "pull", "org/tiny", HF_HUB_OFFLINE="1")
    assert refused.returncode == 2 and "HF_HUB_OFFLINE" in refused.stderr
