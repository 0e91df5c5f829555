"""The root command: what answers without torch, and which exit codes there are."""

import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

import ktitan
from ktitan.cli.main import app
from ktitan.errors import BudgetError, IoError, RuleError
from ktitan.local_chat.terminal import GuardedGroup

LIGHT = [
    ["--help"],
    ["--version"],
    ["chat", "--help"],
    ["plan", "-h"],
    ["verify", "--help"],
    ["serve", "--help"],
    ["rules", "check", "--help"],
    ["bench", "--help"],
    ["pull", "--help"],
    ["list", "--help"],
    ["rm", "--help"],
    ["doctor", "--help"],
    ["convert", "--help"],
    ["--hardware"],
    ["--hardware", "--json"],
    [],
    ["rules"],
    ["--nonsense"],
    ["nonsense"],
    ["plan"],
    ["plan", "--nonsense"],
    ["pull"],
    ["rm"],
    ["convert", "only-a-source"],
    ["serve"],
    ["verify", "m", "--rows", "0"],
    ["chat", "m", "--top_p", "7"],
    ["chat", "-p", "no model"],
    ["chat", "m", "-p", "x", "--lora", "a", "--lora", "b"],
    ["-p", "no model"],
    ["-m", "demo", "--top_k", "-1"],
    ["-m", "demo", "-q", "q4_k"],
    ["-m", "demo", "plan", "x"],
    ["--json"],
    ["--hardware", "-p", "hi"],
    ["--measure"],
    ["-m", "demo", "--temp", "-1"],
    ["-m", "demo", "--port", "1"],
    ["-m", "demo", "--serve", "--temp", "1"],
    ["-m", "demo", "-ngl", "many"],
    ["demo"],
]
PROBE = """
import sys
from ktitan.cli.main import app
for words in {arguments!r}:
    try:
        app(words, prog_name="ktitan")
    except SystemExit as end:
        heavy = {{"torch", "transformers", "numpy", "numba", "huggingface_hub", "fastapi", "uvicorn"}}
        heavy = sorted(heavy & set(sys.modules))
        sys.stderr.write(f"END {{words}} {{end.code}} {{heavy}}\\n")
"""


def test_help_version_and_bad_flags_do_not_import_torch():
    ended = subprocess.run([sys.executable, "-c", PROBE.format(arguments=LIGHT)], capture_output=True, timeout=60)
    ends = [line for line in ended.stderr.decode().splitlines() if line.startswith("END")]
    codes = [0] * 15 + [2] * (len(LIGHT) - 15)
    assert ends == [f"END {words} {code} []" for words, code in zip(LIGHT, codes, strict=True)]


def test_version_and_help():
    runner = CliRunner()
    assert runner.invoke(app, ["--version"]).stdout == f"ktitan {ktitan.__version__}\n"
    commands = runner.invoke(app, ["--help"]).stdout
    names = ("chat", "serve", "plan", "verify", "pull", "list", "rm", "doctor", "rules", "bench")
    assert all(name in commands for name in names)


@pytest.mark.parametrize("name", ["--max-new-tokens", "--max_new_tokens"])
def test_options_are_read_with_either_mark(name):
    result = CliRunner().invoke(app, ["chat", "m", "-p", "x", name, "0"])
    assert result.exit_code == 2
    assert "--max-new-tokens" in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuleError("no such operator", "r.yaml:3", "use one"), 2),
        (BudgetError("too much"), 2),
        (IoError("the drive failed"), 2),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_of_any_command_become_exit_codes(error, code):
    failing = typer.Typer(cls=GuardedGroup)

    @failing.callback()
    def group():
        pass

    @failing.command()
    def fail():
        raise error

    result = CliRunner().invoke(failing, ["fail"])
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.strip() == ("" if code == 130 else str(error))


def test_a_fault_is_not_dressed_up():
    failing = typer.Typer(cls=GuardedGroup)

    @failing.callback()
    def group():
        pass

    @failing.command()
    def fail():
        raise ZeroDivisionError

    result = CliRunner().invoke(failing, ["fail"])
    assert result.exit_code == 1
    assert isinstance(result.exception, ZeroDivisionError)


def test_completion_knows_commands_and_options():
    variables = ["_KTITAN_COMPLETE=complete_bash", "COMP_CWORD=1"]
    for word, offered in (("se", "serve"), ("--n-cpu", "--n-cpu-moe"), ("--optimize", "--optimize-rule-path")):
        command = ["env", *variables, f"COMP_WORDS=ktitan {word}", sys.executable, "-m", "ktitan.cli.main"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert offered in ended.stdout.split(), ended.stderr


def test_completion_scripts_are_shown():
    command = ["env", "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION=1", sys.executable, "-m", "ktitan.cli.main"]
    ended = subprocess.run([*command, "--show-completion", "bash"], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0 and "_KTITAN_COMPLETE=complete_bash" in ended.stdout


@pytest.mark.parametrize("variable", ["NO_COLOR=1", "TERM=dumb", "FORCE_COLOR=1"])
def test_pipes_and_no_color_get_plain_text(variable, tiny_gguf):
    command = ["env", variable, sys.executable, "-m", "ktitan.cli.main", "-m", str(tiny_gguf), "-n", "2", "--greedy"]
    ended = subprocess.run(command, input="The matrix", capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert "\x1b" not in ended.stdout
    assert ("\x1b[" in ended.stderr) == (variable == "FORCE_COLOR=1")
    assert ended.stderr.startswith("-n 2 became --max-new-tokens 2\n")


@pytest.mark.parametrize("name", ["demo", "some/model", "x.gguf"])
def test_a_model_in_place_of_a_command_gets_a_hint(name):
    result = CliRunner().invoke(app, [name])
    assert result.exit_code == 2
    assert f"ktitan -m {name}" in " ".join(result.stderr.replace("│", " ").split())
    assert "ktitan -m" not in CliRunner().invoke(app, ["chatt"]).stderr
