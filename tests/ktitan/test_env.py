import subprocess
import sys

import pytest

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
