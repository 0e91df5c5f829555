"""`ktitan verify` on small models' folders."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from ktitan.cli.main import app
from ktitan.verify import verify_model

from support.adapters import random_tensors, sizes_of, write_adapter


@pytest.fixture(scope="module")
def models(rig, tmp_path_factory):
    root = tmp_path_factory.mktemp("verify")
    for name, seed, changes in (("one", 1, {}), ("two", 2, {}), ("other", 3, {"vocab_size": 300})):
        rig.save(root / name, rig.random_model(seed, **changes), rig.byte_tokenizer())
    np.save(root / "ids.npy", np.random.default_rng(4).integers(0, 260, (3, 24)))
    (root / "text.txt").write_text("The quick brown fox jumps over the lazy dog, again and again.")
    return root


def invoke(*words):
    return CliRunner().invoke(app, ["verify", *map(str, words), "--device", "cpu"])


def test_json_is_one_object_with_the_figures(models):
    result = invoke(models / "one", "--against", models / "two", "--ids", models / "ids.npy", "--rows", 2, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    wanted = verify_model(models / "one", models / "two", ids=models / "ids.npy", rows=2, device="cpu")
    assert report == pytest.approx(wanted.to_json())
    assert {"nll", "ppl", "kld", "kld_p99", "top1", "tokens"} <= set(report)
    assert report["tokens"] == 46
    assert "run reference" in result.stderr
    assert "tokens/s" in result.stderr


def test_without_a_reference_the_comparison_is_null(models):
    result = invoke(models / "one", "--text", models / "text.txt", "--window", 20, "--json")
    report = json.loads(result.stdout)
    assert (report["kld"], report["kld_p99"], report["top1"], report["tokens"]) == (None, None, None, 3 * 19)


def test_people_get_a_table(models):
    result = invoke(models / "one", "--against", "stock", "--ids", models / "ids.npy", "--chunk", 5)
    assert result.exit_code == 0, result.output
    lines = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    assert lines["positions"] == f"69 in 3 windows of {models / 'ids.npy'}"
    assert "KL mean" in result.stdout
    assert "100.00 %" in result.stdout


def test_an_adapter_is_part_of_the_model(models, rig, tmp_path):
    tensors = random_tensors(sizes_of(rig.random_model(1), "q_proj"), seed=3)
    lora = write_adapter(tmp_path / "lora", tensors)
    words = [models / "one", "--against", "stock", "--ids", models / "ids.npy", "--json"]
    assert json.loads(invoke(*words).stdout)["kld"] < 1e-9
    assert json.loads(invoke(*words, "--lora", lora).stdout)["kld"] > 1e-9
    result = invoke(*words, "--lora", lora, "--lora", lora)
    assert (result.exit_code, "takes one adapter" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "one of the two"),
        (["--ids", "ids.npy", "--text", "text.txt"], "one of the two"),
        (["--ids", "nowhere.npy"], "cannot open"),
        (["--ids", "ids.npy", "--against", "other"], "264 entries, the reference"),
        (["--ids", "ids.npy", "--against", "nowhere"], "no such file or folder"),
        (["--ids", "ids.npy", "--rules", "nowhere.yaml"], "nowhere.yaml"),
        (["--ids", "ids.npy", "--spool", "nowhere", "--against", "two"], "cannot be made"),
        (["--ids", "long.npy"], "the model has positions for 512"),
    ],
)
def test_mistakes_are_named(models, words, message, monkeypatch):
    monkeypatch.chdir(models)
    np.save(models / "long.npy", np.zeros((1, 600), int))
    result = invoke("one", *words)
    assert result.exit_code in (1, 2)
    assert message in result.stderr
    assert (result.stdout, "Traceback" in result.stderr) == ("", False)
