"""Options under the names of llama.cpp and KTransformers: what they become, and what is refused."""

import pytest
from typer.testing import CliRunner

import ktitan.api
from ktitan.api import ALL_LAYERS, PlacedRules
from ktitan.cli import serve
from ktitan.cli.main import app
from ktitan.local_chat import command


@pytest.fixture
def asked(monkeypatch):
    """What the chat, or the server, was asked for; nothing is loaded."""
    seen = {}

    def run(options, prompt, plugin):
        seen.update(options.load, **options.stream, threads=options.threads)

    monkeypatch.setattr(command, "_run", run)
    monkeypatch.setattr(serve, "start_server", lambda model, **options: seen.update(options["load"], **options))
    return seen


@pytest.mark.parametrize(
    ("words", "name", "value", "told"),
    [
        ("--temp 0.5", "temperature", 0.5, "--temp 0.5 became --temperature 0.5"),
        ("--repeat_penalty 1.5", "repetition_penalty", 1.5, "--repeat-penalty 1.5 became --repetition-penalty 1.5"),
        ("-n 5", "max_new_tokens", 5, "-n 5 became --max-new-tokens 5"),
        ("--n-predict 5", "max_new_tokens", 5, "became --max-new-tokens 5"),
        ("--ctx-size 99", "context", 99, "--ctx-size 99 became --context 99"),
        ("--ctx-size 0", "context", None, "--ctx-size 0 became --context its default"),
        ("-ub 64", "chunk_tokens", 64, "-ub 64 became --chunk-size 64"),
        ("-b 64 -ub 128", "chunk_tokens", 64, "-b 64 became --chunk-size 64"),
        ("--cpu_infer 3", "threads", 3, "--cpu-infer 3 became --threads 3"),
        ("-c 9", "context", 9, ""),
        ("-t 2", "threads", 2, ""),
        ("--optimize_rule_path r.yaml", "rules", "r.yaml", ""),
        ("-ngl 20", "rules", PlacedRules(gpu_layers=20), ""),
        ("--n-gpu-layers all", "rules", PlacedRules(gpu_layers=ALL_LAYERS), ""),
        ("-ncmoe 3 --rules r.yaml", "rules", PlacedRules("r.yaml", cpu_experts=3), ""),
        ("--cpu-moe", "rules", PlacedRules(cpu_experts=ALL_LAYERS), ""),
        ("-ot exps=CPU -ot a=CUDA0", "rules", PlacedRules(tensors=("exps=CPU", "a=CUDA0")), ""),
        ("-ngl auto", "rules", "auto", ""),
    ],
)
def test_known_names_say_what_they_became(asked, words, name, value, told):
    for start in (["-m", "m", "-p", "x"], ["chat", "m", "-p", "x"]):
        result = CliRunner().invoke(app, [*start, *words.split()])
        assert result.exit_code == 0, result.output
        assert asked[name] == value
        assert told in result.stderr and result.stdout == ""


def test_the_server_takes_those_that_it_has(asked):
    for start in (["serve", "m"], ["-m", "m", "--serve"]):
        result = CliRunner().invoke(app, [*start, "--cpu-infer", "2", "-ub", "8", "--cpu-moe", "--ctx-size", "77"])
        assert result.exit_code == 0, result.output
        assert (asked["threads"], asked["chunk_tokens"], asked["context"]) == (2, 8, 77)
        assert asked["rules"] == PlacedRules(cpu_experts=ALL_LAYERS)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--temp 1 --temperature 0.5", "--temp and --temperature are the same here"),
        ("-n 3 --max-new-tokens 4", "-n and --max-new-tokens"),
        ("--cpu-moe -ncmoe 3", "--cpu-moe is --n-cpu-moe of all layers"),
        ("-ngl many", "-ngl many: give a number of layers, all or auto"),
        ("-ngl -3", "give a number of layers"),
        ("-ncmoe -1", "--n-cpu-moe"),
        ("--temp x", "--temp"),
        ("-t 0", "--threads"),
    ],
)
def test_what_is_refused(asked, words, reason):
    result = CliRunner().invoke(app, ["chat", "m", "-p", "x", *words.split()])
    assert (result.exit_code, result.stdout, asked) == (2, "", {})
    assert reason in " ".join(result.stderr.split())


def test_a_plan_shows_the_rules(tiny_gguf, caplog):
    result = CliRunner().invoke(app, ["plan", str(tiny_gguf), "--device", "cpu", "--cpu-moe"])
    assert result.exit_code == 0, result.output
    assert "--cpu-moe: became rules:\n  - match: {name: 'model\\.layers\\.\\d+\\.mlp\\.experts'" in caplog.text


def test_threads_are_set_before_the_model_is_loaded(monkeypatch, tiny_gguf):
    steps = []
    monkeypatch.setattr(ktitan.api, "set_threads", lambda count: steps.append(count))
    monkeypatch.setattr(ktitan.api, "load", lambda *_, **__: steps.append("load"))
    CliRunner().invoke(app, ["-m", str(tiny_gguf), "-p", "x", "-t", "2"])
    assert steps == [2, "load"]
