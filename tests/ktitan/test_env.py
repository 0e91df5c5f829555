import subprocess
import sys

import pytest

from ktitan import env

SCRIPT = """
import os
{first}
import ktitan
print(os.environ.get("OMP_WAIT_POLICY", "unset"), ktitan.env.openmp_rests())
"""


@pytest.mark.parametrize(
    ("first", "given", "expected"),
    [
        ("", {}, "PASSIVE True"),
        ("", {"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE True"),
        ("", {"GOMP_SPINCOUNT": "7"}, "unset True"),
        ("import sys, types; sys.modules['torch'] = types.ModuleType('torch')", {}, "unset False"),
    ],
)
def test_openmp_s_idle_threads_rest_unless_the_user_or_torch_was_first(first, given, expected, repository):
    environment = {"PYTHONPATH": str(repository), "PATH": "/usr/bin:/bin", **given}
    command = [sys.executable, "-c", SCRIPT.format(first=first)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=repository)
    assert done.stdout.strip() == expected


def test_settings_are_the_variables_that_are_set(monkeypatch):
    monkeypatch.setenv("KTITAN_THREADS", "3")
    monkeypatch.setenv("KTITAN_CPU_ISA", "")
    found = env.settings()
    assert found["KTITAN_THREADS"] == "3" and "KTITAN_CPU_ISA" not in found


def test_secrets_are_known_by_their_names(monkeypatch):
    for name, value in {"HF_TOKEN": "hf_abcdef", "X_API_KEY": "abcdefg", "TOKENIZERS_PARALLELISM": "parallel"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("USE_KEY", "true")
    found = env.secret_values()
    assert {"hf_abcdef", "abcdefg"} <= found and not {"parallel", "true"} & found
