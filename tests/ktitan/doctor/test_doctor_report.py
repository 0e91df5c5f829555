"""The whole report: what it says, that it can be shown to anyone, and its exit code."""

import json
import os
import platform
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import ktitan
from ktitan.cli.main import app
from ktitan.doctor import gpu, versions
from ktitan.doctor.finding import Finding, format_bytes, to_json, to_text

STRANGE_MACHINE = """
import platform, sys
platform.node = lambda: "deepthought.example.org"
platform.release = lambda: "6.1-deepthought"
from ktitan.cli.main import app
from ktitan.doctor import gpu
from ktitan.local_chat import terminal
gpu.probe_torch = lambda: {"fault": "in /opt/zebulon/x.py of 10.9.8.7"}
terminal._start_logging = lambda: None
try:
    app(sys.argv[1:], prog_name="ktitan")
finally:
    assert not {"torch", "transformers", "numba", "numpy"} & set(sys.modules)
"""


@pytest.fixture
def quick(monkeypatch):
    """Without the process that imports torch."""
    monkeypatch.setattr(gpu, "probe_torch", lambda: {"cuda": None, "hip": None, "gpus": 0})


def report(*arguments):
    result = CliRunner().invoke(app, ["doctor", *arguments])
    assert result.stderr == ""
    return result


def test_the_report_as_text_and_json(quick, tmp_path):
    text = report(str(tmp_path)).stdout
    facts = json.loads(report(str(tmp_path), "--json").stdout)
    assert facts["usable"] is True
    assert list(facts) == ["usable", "versions", "cpu kernels", "limits", "storage", "gpu"]
    for section in list(facts)[1:]:
        for each in facts[section]:
            assert each["status"] in ("ok", "warning") and bool(each["remedy"]) == (each["status"] == "warning")
            assert f"  {each['status']:<8}{each['name']}" in text
    names = {each["name"] for section in list(facts)[1:] for each in facts[section]}
    assert names >= {"ktitan", "python", "torch", "transformers", "numba", "gguf", "safetensors", "kernel", "libc"}
    assert names >= {"native library", "threads", "io_uring", "O_DIRECT", "path", "hub cache", "memlock", "open files"}
    assert names >= {"memory", "cgroup memory", "cgroup cpu", "swap", "huge pages", "numa nodes", "driver", "nvrtc"}
    assert ktitan.__version__ in text and platform.python_version() in text


def test_a_report_names_no_user_host_home_or_token(tmp_path):
    home = tmp_path / "home" / "zebulon"
    (home / "models").mkdir(parents=True)
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("KTITAN_", "HF_"))},
        **{"HOME": str(home), "USER": "zebulon", "LOGNAME": "zebulon"},
        **{"HF_TOKEN": "hf_qwertzuiop", "MY_API_KEY": "kdfj38dk", "HF_HOME": str(home / "kdfj38dk" / "hf")},
        **{"HF_HUB_CACHE": "/srv/zebulon-cache", "KTITAN_LOG": "kdfj38dk hf_qwertzuiop 10.1.2.3"},
    }
    code = STRANGE_MACHINE
    command = [sys.executable, "-c", code, "doctor", str(home / "models")]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (1, ""), done.stderr
    assert "~/models: " in done.stdout and "/srv/<user>-cache" in done.stdout
    assert "<secret> <secret> <address>" in done.stdout and "6.1-<host>" in done.stdout
    assert "cannot be imported: in /opt/<user>/x.py of <address>" in done.stdout
    for word in ("zebulon", "deepthought", "qwertzuiop", "kdfj38dk", "10.1.2.3", "10.9.8.7", str(home)):
        assert word not in done.stdout


def test_what_makes_ktitan_unusable_is_an_error(quick, monkeypatch):
    monkeypatch.setattr(
        versions.metadata, "requires", lambda name: ["no-such-package>=3", "torch>=99", "typer", "x; extra == 'dev'"]
    )
    result = report("--json")
    facts = json.loads(result.stdout)
    wrong = {each["name"]: each for each in facts["versions"] if each["status"] == "error"}
    assert (result.exit_code, facts["usable"]) == (1, False)
    assert set(wrong) == {"no-such-package", "torch"} and all(each["remedy"] for each in wrong.values())
    assert wrong["no-such-package"]["value"] == "missing; >=3 is needed" and ">=99 is needed" in wrong["torch"]["value"]


def test_a_setting_that_means_nothing_is_an_error(quick, monkeypatch):
    from ktitan.native import library

    library.state.cache_clear()
    monkeypatch.setenv("KTITAN_CPU_ISA", "sse9")
    result = report()
    monkeypatch.undo()
    library.state.cache_clear()
    assert result.exit_code == 1
    assert "  error   KTITAN_CPU_ISA      instruction set 'sse9'" in result.stdout


def test_a_path_that_is_not_there_is_the_users_error(tmp_path):
    result = CliRunner().invoke(app, ["doctor", str(tmp_path / "none")])
    assert result.exit_code == 2 and "does not exist" in result.stderr


def test_findings_as_text_and_data():
    found = {"a": [Finding("x", "1"), Finding("y", "2", "warning", "do z")], "b": [Finding("w", "0", "error", "v")]}
    assert to_text(found).splitlines() == [
        "a",
        "  ok      x                   1",
        "  warning y                   2",
        "                              remedy: do z",
        "b",
        "  error   w                   0",
        "                              remedy: v",
    ]
    assert to_json(found)["usable"] is False and to_json({"a": found["a"]})["usable"] is True


def test_sizes():
    sizes = (0, 1, 1023, 1024, 8 << 20, 3 << 29, 1 << 60)
    assert [format_bytes(size) for size in sizes] == ["0 B", "1 B", "1023 B", "1 KiB", "8 MiB", "1.5 GiB", "1024 PiB"]
