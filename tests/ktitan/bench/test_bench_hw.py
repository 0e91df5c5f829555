"""`ktitan bench hw` from end to end on a small buffer, and its command."""

from __future__ import annotations

import functools
import json
import subprocess
import sys

import pytest
import torch
import typer
from typer.testing import CliRunner

from ktitan.bench import command, hw
from ktitan.bench.gemm import gemm_results, gemv_results
from ktitan.bench.result import Result
from ktitan.errors import HardwareError
from ktitan.hardware import Cpu, Gpu, Hardware, Memory

GPU = Gpu(1, "Second", 1 << 34, 1 << 34, (9, 0))


def machine(gpus=(), cpus=2):
    return Hardware(Cpu("c", frozenset(), cpus, cpus, cpus), Memory(64 << 20, 64 << 20, None), gpus)


@pytest.fixture
def fake_parts(monkeypatch):
    """Replace what is measured by its name, so that only the order and the wiring are left."""
    parts = {name: Result(name, "m", 1.0, "GB/s") for name in ("memory", "gemm", "gemv", "drive", "gpu")}
    for name, result in parts.items():
        monkeypatch.setattr(hw, f"{name}_results", lambda *_args, result=result: [result])
    return parts


def test_everything_on_the_cpu_for_real(monkeypatch):
    small = {"out": 256, "hidden": 128}
    monkeypatch.setattr(hw, "gemm_results", functools.partial(gemm_results, rows=16, **small))
    monkeypatch.setattr(hw, "gemv_results", functools.partial(gemv_results, **small))
    before = torch.get_num_threads()
    told = []
    results = hw.run(None, 0.01, hardware=machine(cpus=1), progress=told.append)
    assert torch.get_num_threads() == before
    assert [result.case.split("-")[0] for result in results] == ["memory"] + ["gemm"] * 3 + ["gemv"] * 3
    assert all(result.value > 0 for result in results)
    assert told == ["memory read", "matrix products"]


@pytest.mark.usefixtures("fake_parts")
@pytest.mark.parametrize(
    ("path", "gpus", "more"),
    [(None, (), []), ("/x", (), ["drive"]), (None, (GPU,), ["gpu"]), ("/x", (GPU,), ["drive", "gpu"])],
)
def test_parts_run_when_they_apply(path, gpus, more):
    results = hw.run(path, 0.01, hardware=machine(gpus))
    assert [result.case for result in results] == ["memory", "gemm", "gemv", *more]


def test_threads_are_put_back_after_an_error(monkeypatch):
    def fail(*_args):
        raise ZeroDivisionError

    monkeypatch.setattr(hw, "memory_results", fail)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with pytest.raises(ZeroDivisionError):
            hw.run(None, 0.01, hardware=machine())
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_a_gpu_that_is_not_there_is_refused_before_anything_is_measured(monkeypatch):
    monkeypatch.setattr(hw, "aligned_buffer", None)
    with pytest.raises(HardwareError, match="no CUDA device 0") as caught:
        hw.run(None, 0.01, hardware=machine((GPU,)), gpu=0)
    assert "1 (Second)" in caught.value.remedy


@pytest.fixture
def invoke(monkeypatch, fake_parts):
    monkeypatch.setattr("ktitan.hardware.detect", machine)
    app = typer.Typer()
    command.register(app)
    return lambda *words: CliRunner().invoke(app, ["bench", "hw", *words])


def test_command_json_is_all_of_stdout(invoke, fake_parts, tmp_path):
    answer = invoke("--json", "--seconds", "0.01", "--path", str(tmp_path))
    assert answer.exit_code == 0
    first, *rest = answer.stdout.splitlines()
    assert json.loads(first)["machine"]["cpu"] == "c"
    assert rest == [fake_parts[name].to_json() for name in ("memory", "gemm", "gemv", "drive")]


def test_command_table(invoke):
    answer = invoke()
    assert answer.exit_code == 0
    assert "memory" in answer.stdout
    assert "drive" not in answer.stdout


def test_command_refuses_a_missing_path_at_once(invoke, tmp_path):
    answer = invoke("--path", str(tmp_path / "nothing"))
    assert answer.exit_code == 2
    assert answer.stdout == ""
    assert "nothing" in answer.stderr


def test_command_hands_errors_to_the_root(invoke):
    answer = invoke("--gpu", "3")
    assert isinstance(answer.exception, HardwareError)


def test_the_command_line_starts_without_heavy_imports():
    code = (
        "import sys, typer; from ktitan.bench.command import register; register(typer.Typer());"
        "sys.exit(bool({'torch', 'numba', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_bench_itself_imports_torch_and_numba_only_when_it_runs():
    code = "import sys, ktitan.bench.hw; sys.exit(bool({'torch', 'numba'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
