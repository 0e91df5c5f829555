"""Every example runs as its docstring says, on the tiny model of the source tree."""

import importlib.util
import subprocess
import sys

import pytest
import torch

import ktitan
from ktitan.registry import operators

EXAMPLES = {
    "generate.py": "The best way to learn",
    "plan.py": "it fits",
    "custom_rule.py": "lm_head: linear.torch by custom_rule.yaml:5, torch.float32",
    "custom_operator.py": "MLPs replaced, the first at model.layers.0.mlp",
}


def test_every_example_is_listed(repository):
    assert {path.name for path in (repository / "examples").glob("*.py")} == set(EXAMPLES)


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_example(name, repository, tmp_path, tiny_gguf):
    command = [sys.executable, str(repository / "examples" / name), str(tiny_gguf)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr
    assert EXAMPLES[name] in run.stdout
    assert run.stdout.count("�") == 0


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
