"""`ktitan rules import`: KTransformers files become files of version 1."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ktitan.cli.main import app
from ktitan.rules import parse_rules

SOURCE = Path(__file__).parents[1] / "rules" / "ktransformers" / "files" / "qwen2_moe.yaml"


def invoke(*words):
    return CliRunner().invoke(app, ["rules", "import", *map(str, words)])


def test_rules_go_to_stdout_and_remarks_to_stderr(tmp_path):
    result = invoke(SOURCE)
    assert result.exit_code == 0, result.output
    lines = result.stderr.splitlines()
    assert lines == [str(note) for note in parse_rules(SOURCE).notes]
    assert f"{SOURCE}:12, 18: VLinearMarlin requantizes to 4 bits" in result.stderr
    written = tmp_path / "written.yaml"
    written.write_text(result.stdout)
    assert parse_rules(written) == parse_rules(SOURCE)
    assert f"# Translated from {SOURCE}" in result.stdout


def test_a_file_is_written_once(tmp_path):
    target = tmp_path / "mine.yaml"
    assert f"wrote {target}" in invoke(SOURCE, target).stderr
    text = target.read_text()
    again = invoke(SOURCE, target)
    assert again.exit_code == 2 and "--force" in again.stderr
    target.write_text("old")
    assert invoke(SOURCE, target, "--force").exit_code == 0
    assert target.read_text() == text == invoke(SOURCE).stdout


def test_operators_for_prompts_are_kept_on_demand(tmp_path):
    source = tmp_path / "kt.yaml"
    source.write_text(SOURCE.read_text().replace("threshold: 4096", "threshold: 0"))
    assert "prefill:" not in invoke(source).stdout
    assert "prefill: {class: experts.torch, kwargs: {device: 'cuda:0'}}" in invoke(source, "--prefill").stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- match: {name: 'a('}\n  replace: {class: b.c}\n", "[RuleError] 2 faults; nothing was written\n1. "),
        ("version: 1\nrules: []\n", "this is no rule file of KTransformers"),
        (None, "there is no rule file"),
    ],
)
def test_faults_write_nothing(tmp_path, text, message):
    source, target = tmp_path / "kt.yaml", tmp_path / "out.yaml"
    if text is not None:
        source.write_text(text)
    result = invoke(source, target)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr and "remedy" in result.stderr
    assert not target.exists()
