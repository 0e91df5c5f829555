"""Every example runs as its docstring says, on the tiny model of the source tree."""

import subprocess
import sys

import pytest

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
