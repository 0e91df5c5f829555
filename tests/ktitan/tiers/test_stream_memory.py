"""Memory is what was allowed, reads are what is counted, nothing grows; tools/check_stream.py does it at length."""

import json
import os
import subprocess
import sys

import pytest

from support.memory_cgroup import memory_cgroup
from support.streaming import save_mixture

MIB = 1 << 20
SPARE = 64 * MIB


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """86 MB in 4 layers of 32 experts: large beside what a run of Python varies by."""
    return save_mixture(tmp_path_factory.mktemp("memory"), experts=32, layers=4, hidden=256, neurons=1536)


@pytest.fixture(scope="module")
def one_layer(tmp_path_factory):
    return save_mixture(tmp_path_factory.mktemp("one"), experts=8, layers=1, hidden=256, neurons=1536)


@pytest.fixture(scope="module")
def program(repository):
    """Runs support/stream_program.py; gives what it reports."""
    environment = {**os.environ, "PYTHONPATH": str(repository / "tests"), "OMP_NUM_THREADS": "1"}

    def run(model, *options, group=None):
        command = [sys.executable, "-P", "-m", "support.stream_program", str(model), *map(str, options)]
        if group is None:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        else:
            done = group.run(command, env=environment)
            assert done.kills == 0
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_memory_stays_within_the_budget_and_a_cgroup_of_that_size(mixture, one_layer, program):
    budget = 40 * MIB
    least = program(one_layer, "--ram", budget)["peak_rss"]
    allowed = budget + least + SPARE
    assert program(mixture, "--ram", budget)["peak_rss"] <= allowed
    with memory_cgroup(allowed) as group:
        assert program(mixture, "--ram", budget, group=group)["after"]["evictions"] > 0


def test_counters_add_up_and_agree_with_the_kernel(mixture, program):
    found = program(mixture, "--share", 0.3, "--tokens", 60, "--prompts")
    before, after = found["before"], found["after"]
    assert after["demands"] == after["hits"] + after["misses"]
    assert after["io"]["wanted_bytes"] <= after["io"]["read_bytes"]
    if after["io"]["direct_files"] < after["io"]["files"] or not found["kernel_bytes"]:
        pytest.skip("this drive is read through the page cache, or is none")
    counted = after["io"]["read_bytes"] - before["io"]["read_bytes"]
    assert counted > 0 and abs(found["kernel_bytes"] - counted) <= 0.02 * counted


def test_nothing_grows(mixture, program):
    found = program(mixture, "--share", 0.15, "--tokens", 2000, "--prompts")
    (_, first_rss, first_files), *_, (_, last_rss, last_files) = found["samples"]
    assert last_files == first_files
    assert last_rss <= first_rss + 4 * MIB
