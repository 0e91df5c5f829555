"""`ktitan plan` and `ktitan rules check` on a small model's folder."""

import json
import os
import stat

import pytest
from typer.testing import CliRunner

from ktitan.cli.main import app
from ktitan.cli.plan import write_atomically
from ktitan.errors import IoError
from ktitan.registry import operators

RULES = r"""version: 1
rules:
  - match: {name: 'model\.layers\.\d+\.mlp\.up_proj'}
    replace: {class: linear.torch}
"""
PLUGIN = """
from ktitan import register_operator
from ktitan.operators.linear.torch import TorchLinear

@register_operator("linear.of_a_plugin")
class Mine(TorchLinear):
    pass
"""


@pytest.fixture(scope="module")
def folder(rig, tmp_path_factory):
    return str(rig.save(tmp_path_factory.mktemp("plan") / "model", rig.random_model(1), rig.byte_tokenizer()))


@pytest.fixture
def rule_file(tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    return path


def invoke(*words):
    return CliRunner().invoke(app, [*map(str, words), "--device", "cpu"])


def test_table_folds_layers_and_shows_totals(folder, rule_file):
    result = invoke("plan", folder, "--rules", rule_file)
    assert result.exit_code == 0, result.output
    line = next(line for line in result.stdout.splitlines() if "up_proj" in line)
    assert "model.layers.[0-1].mlp.up_proj" in line
    assert "linear.torch" in line
    assert "rules.yaml:3" in line
    assert any(line.startswith("ram: ") for line in result.stdout.splitlines())
    assert result.stderr == ""


def test_json_is_the_whole_plan_and_nothing_else(folder, rule_file):
    result = invoke("plan", folder, "--optimize_config_path", rule_file, "--json", "--context", 100, "--kv", "F32")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["context_tokens"], report["kv_format"], report["faults"]) == (0, 100, "f32", [])
    assert sum(row["operator"] == "linear.torch" for row in report["rows"]) == 2


def test_unknown_kv_formats_are_refused_with_the_list(folder, rule_file):
    result = invoke("plan", folder, "--rules", rule_file, "--kv", "q4")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "'q4' is no format of the KV cache" in result.stderr and "choose f32, bf16, q8" in result.stderr


def test_written_plan_is_a_rule_file_that_makes_the_same_plan(folder, rule_file, tmp_path):
    written = tmp_path / "written.yaml"
    result = invoke("plan", folder, "--rules", rule_file, "--write", written)
    assert result.exit_code == 0, result.output
    assert f"wrote {written}" in result.stderr
    plans = [json.loads(invoke("plan", folder, "--rules", file, "--json").stdout) for file in (rule_file, written)]
    kept = ("path", "operator", "format", "tier", "device", "bytes")
    rows = [[{name: row[name] for name in kept} for row in plan["rows"]] for plan in plans]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("limits", [["--ram", "1KiB"], ["--budget", "ram=1KiB"]])
def test_what_does_not_fit_is_shown_with_its_fault(folder, rule_file, tmp_path, limits):
    written = tmp_path / "written.yaml"
    result = invoke("plan", folder, "--rules", rule_file, "--json", "--write", written, *limits)
    assert result.exit_code == 2
    assert json.loads(result.stdout)["faults"]
    assert "[BudgetError]" in result.stderr
    assert not written.exists()


@pytest.mark.parametrize("limits", [["--ram", "lots"], ["--budget", "ram=1GiB", "--ram", "2GiB"]])
def test_budgets_that_are_none_are_the_users_error(folder, limits):
    result = invoke("plan", folder, "--json", *limits)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "[BudgetError]" in result.stderr


def test_check_says_what_is_replaced(folder, rule_file):
    result = invoke("rules", "check", rule_file, folder)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{rule_file}: no faults; 2 modules are replaced\n"
    report = json.loads(invoke("rules", "check", rule_file, folder, "--json").stdout)
    assert report == {"file": str(rule_file), "replaced": 2, "faults": []}


def test_check_names_every_fault_with_its_line(folder, rule_file):
    more = "  - match: {name: nothing}\n    replace: {class: linear.torch}\n"
    more += "  - match: {name: lm_head}\n    replace: {class: linear.torc}\n"
    rule_file.write_text(RULES + more)
    result = invoke("rules", "check", rule_file, folder)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "[RuleError] 2 faults" in result.stderr
    assert "rules.yaml:5: matches no module" in result.stderr
    assert "linear.torc" in result.stderr


@pytest.fixture
def plugin(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(PLUGIN)
    yield path
    operators.remove("linear.of_a_plugin")


@pytest.mark.parametrize("words", [("rules", "check", "RULES", "MODEL"), ("plan", "MODEL", "--rules", "RULES")])
def test_rules_may_name_the_operators_of_a_plugin(folder, rule_file, plugin, words):
    rule_file.write_text(RULES.replace("linear.torch", "linear.of_a_plugin"))
    words = [{"RULES": rule_file, "MODEL": folder}.get(word, word) for word in words]
    without = invoke(*words)
    assert without.exit_code == 2
    assert "no operator named 'linear.of_a_plugin'" in without.stderr
    result = invoke(*words, "--plugin", plugin)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""


@pytest.mark.parametrize("words", [("rules", "check", "r.yaml", "m"), ("plan", "m")])
def test_a_plugin_that_is_missing_is_the_users_error(words):
    result = invoke(*words, "--plugin", "no_such.py")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no_such.py: no such file" in result.stderr


def test_check_plans_for_the_context_that_is_asked_for(folder, rule_file):
    words = ("rules", "check", rule_file, folder, "--ram", "16MiB", "--context")
    assert invoke(*words, 1).exit_code == 0
    result = invoke(*words, 10**7)
    assert result.exit_code == 2
    assert "[BudgetError]" in result.stderr


def test_missing_model_is_the_users_error(tmp_path):
    result = invoke("plan", tmp_path / "nowhere")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "[WeightError]" in result.stderr


def test_write_is_whole_or_not_at_all(tmp_path):
    target = tmp_path / "plan.yaml"
    target.write_text("old")
    write_atomically(target, "new")
    assert target.read_text() == "new"
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~umask
    with pytest.raises(IoError, match="cannot be written"):
        write_atomically(tmp_path / "no" / "plan.yaml", "x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IoError):
        write_atomically(tmp_path / "folder", "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "plan.yaml"]
