"""What a smaller budget frees is free for others at once: resident bytes of a process, and of its control group."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext

import pytest

from ktitan.native import native_reason

from support.memory_cgroup import memory_cgroup, why_not
from support.streaming import save_mixture

MIB = 1 << 20

pytestmark = pytest.mark.skipif(native_reason() is not None, reason=f"native library {native_reason()}")


@pytest.fixture(scope="module")
def report(repository, tmp_path_factory):
    """What support/rebudget_program.py says of 85 MB in 4 layers of 32 experts."""
    model = save_mixture(tmp_path_factory.mktemp("memory"), experts=32, layers=4, hidden=256, neurons=1536)
    environment = {**os.environ, "PYTHONPATH": f"{repository}:{repository}/tests", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-m", "support.rebudget_program", str(model)]
    with memory_cgroup(4096 * MIB) if why_not() is None else nullcontext() as group:
        if group is None:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        else:
            done = group.run([*command, group.folder], env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_answer_is_the_same(report):
    assert report["same"]


@pytest.mark.parametrize("kind", ["resident bytes", "control group"])
def test_memory_goes_within_two_tokens_and_comes_back(report, kind):
    place = ["resident bytes", "control group"].index(kind)
    full, half, again = (report[name][place] for name in ("full", "half", "again"))
    if full is None:
        pytest.skip(why_not())
    assert full - half >= 0.95 * report["difference"] > 32 * MIB
    assert again - half >= 0.95 * report["difference"]
    assert report["arena"] - report["half_arena"] >= 0.95 * report["difference"]
