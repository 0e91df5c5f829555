"""`ktitan plan --program`."""

import pytest
from typer.testing import CliRunner

from ktitan.cli.main import app

from support.packed_models import write_packed


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("program") / "model.gguf"
    write_packed(path, "qwen3_moe", "q8_0", 1)
    return str(path)


def invoke(*words):
    return CliRunner().invoke(app, [*map(str, words), "--device", "cpu"])


def test_one_line_an_operation(path):
    result = invoke("plan", path, "--program")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [str(number) for number in range(len(lines))]
    experts = next(line for line in lines if " experts " in line)
    assert "model.layers.0.mlp.experts" in experts and "q8_0 x int8" in experts
    assert "lm_head" in lines[-1] and "logits[64]" in lines[-1]
    assert "weights loaded" in result.stderr and f"{len(lines)} native operations" in result.stderr


def test_a_model_without_one_says_why(path, tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text("version: 1\nrules:\n  - match: {class: Linear}\n    replace: {class: linear.torch}\n")
    result = invoke("plan", path, "--program", "--rules", rules)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "steps run as modules" in result.output


def test_text_only(path):
    assert invoke("plan", path, "--program", "--json").exit_code == 2
