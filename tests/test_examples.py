"""Every example runs as its docstring says, on the tiny model of the source tree."""

import importlib.util
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
import torch

import ktitan
from ktitan.registry import operators

EXAMPLES = {
    "generate.py": "The best way to learn",
    "plan.py": "it fits",
    "custom_rule.py": "lm_head: linear.torch by custom_rule.yaml:5, torch.float32",
    "nvme_stream.py": "were in the cache",
    "custom_operator.py": "MLPs replaced, the first at model.layers.0.mlp",
}


def test_every_example_is_listed(repository):
    assert {path.name for path in (repository / "examples").glob("*.py")} == {
        *EXAMPLES,
        "openai_client.py",
        "make_moe.py",  # tests/test_make_moe.py
    }


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_example(name, repository, tmp_path, tiny_gguf):
    command = [sys.executable, str(repository / "examples" / name), str(tiny_gguf)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr
    assert EXAMPLES[name] in run.stdout
    assert run.stdout.count("�") == 0


@contextmanager
def served(model):
    """The URL of `ktitan -m model --serve`, which Ctrl-C ends with exit code 0."""
    command = [sys.executable, "-m", "ktitan.cli.main", "-m", str(model), "--serve", "--port", "0", "-t", "1"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        told = ""
        while "serving at " not in told:
            line = server.stderr.readline()
            assert line, told
            told += line
        yield told.rpartition("serving at ")[2].split()[0]
        server.send_signal(signal.SIGINT)
        output, _ = server.communicate(timeout=60)
        assert (server.returncode, output) == (0, "")
    finally:
        server.kill()
        server.communicate()


def test_the_openai_client_streams_from_a_server(repository, tmp_path, tiny_gguf):
    pytest.importorskip("openai")
    with served(tiny_gguf) as url:
        command = [sys.executable, str(repository / "examples" / "openai_client.py"), url]
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()
    assert run.stderr.endswith("64 out\n")


def test_the_custom_operator_computes_what_the_stock_mlp_does(repository, tiny_gguf):
    spec = importlib.util.spec_from_file_location("custom_operator", repository / "examples" / "custom_operator.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    try:
        stock = [{"match": {"name": "lm_head"}, "replace": {"class": "keep"}}]
        plain, tokenizer = ktitan.load(tiny_gguf, rules=stock, device="cpu", dtype="float32")
        fused, _ = ktitan.load(tiny_gguf, rules=example.RULES, device="cpu", dtype="float32")
    finally:
        operators.remove("mlp.fused")
    replaced = [row for row in fused.ktitan.plan.rows if row.operator == "mlp.fused"]
    assert len(replaced) == 1 + 6  # the first layer's, and a shared expert in each of the others
    ids = tokenizer("The matrix is a linear map", return_tensors="pt").input_ids
    with torch.inference_mode():
        assert (plain(ids).logits - fused(ids).logits).abs().max() < 1e-4
