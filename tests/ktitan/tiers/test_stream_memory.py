"""Memory is what was allowed, reads are what is counted, nothing grows; tools/check_stream.py does it at length."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext

import pytest

from support.memory_cgroup import memory_cgroup, why_not
from support.streaming import save_mixture

MIB = 1 << 20
# The promise has 64 MB to spare; with so much a model of this size would fit whole, and nothing would be shown.
SPARE = 16 * MIB


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """85 MB in 4 layers of 32 experts."""
    return save_mixture(tmp_path_factory.mktemp("memory"), experts=32, layers=4, hidden=256, neurons=1536)


@pytest.fixture(scope="module")
def one_layer(tmp_path_factory):
    return save_mixture(tmp_path_factory.mktemp("one"), experts=8, layers=1, hidden=256, neurons=1536)


@pytest.fixture(scope="module")
def program(repository):
    """Runs support/stream_program.py; gives what it reports."""
    environment = {**os.environ, "PYTHONPATH": f"{repository}:{repository}/tests", "OMP_NUM_THREADS": "1"}

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


def test_memory_stays_within_the_budget_in_a_cgroup_of_that_size(mixture, one_layer, program):
    options = ("--ram", 40 * MIB, "--context", 576, "--tokens", 8, "--prompts", 7, 513)
    budget = options[1]
    allowed = budget + program(one_layer, *options)["peak_rss"] + SPARE
    assert mixture.stat().st_size > budget + SPARE + 24 * MIB
    with memory_cgroup(allowed) if why_not() is None else nullcontext() as group:
        found = program(mixture, *options, group=group)
    assert found["peak_rss"] <= allowed
    assert found["after"]["evictions"] > 0 and found["after"]["arena_bytes"] <= budget


@pytest.fixture(scope="module")
def long_run(mixture, program):
    """Two answers with a cache of 15 %."""
    return program(mixture, "--share", 0.15, "--tokens", 600, "--prompts")


def test_counters_add_up_and_agree_with_the_kernel(long_run):
    before, after = long_run["before"], long_run["after"]
    assert after["demands"] == after["hits"] + after["misses"]
    assert 0 < after["io"]["wanted_bytes"] <= after["io"]["read_bytes"]
    if after["io"]["direct_files"] < after["io"]["files"] or not long_run["kernel_bytes"]:
        pytest.skip("this file system is read through the page cache, or lies on no drive")
    counted = after["io"]["read_bytes"] - before["io"]["read_bytes"]
    assert abs(long_run["kernel_bytes"] - counted) <= 0.02 * counted


def test_nothing_grows(long_run):
    (_, first_rss, first_files), *_, (_, last_rss, last_files) = long_run["samples"]
    assert last_files == first_files
    assert last_rss <= first_rss + 4 * MIB
