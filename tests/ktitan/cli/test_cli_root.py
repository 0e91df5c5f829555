"""`ktitan` without a command: the chat's options, the machine, and what does not go together."""

import inspect
import json

import pytest
from typer.testing import CliRunner

from ktitan.cli import hardware, root
from ktitan.cli.main import app
from ktitan.hardware import UNKNOWN, Cpu, Memory
from ktitan.local_chat.command import chat
from ktitan.nvidia import Gpu


@pytest.fixture
def asked(monkeypatch):
    """What the root command hands to the chat."""
    seen = {}
    monkeypatch.setattr(root, "chat", lambda **options: seen.update(options))
    return seen


def test_options_go_to_the_chat(asked):
    result = CliRunner().invoke(app, ["-m", "some/model", "-p", "hi", "--max_new_tokens", "7", "--top-p=0.5"])
    assert result.exit_code == 0, result.output
    usual = {name: each.default for name, each in inspect.signature(chat).parameters.items() if name != "model"}
    assert asked == {**usual, "model_path": "some/model", "prompt": "hi", "max_new_tokens": 7, "top_p": 0.5}


def test_the_commands_own_options_are_not_disturbed(asked, tmp_path):
    result = CliRunner().invoke(app, ["plan", str(tmp_path / "none"), "--json"])
    assert result.exit_code == 2 and asked == {}
    assert "no such file or folder" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-m", "x", "--vram", "2GiB", "plan", "y"], "--model-path, --vram: write options of plan behind its name"),
        (["-p", "hi"], "no model: ktitan -m MODEL"),
        (["--json", "-m", "x"], "--json goes with --hardware"),
        (["--hardware", "-m", "x"], "--hardware goes alone"),
        (["-m", "x", "-q", "q4_k"], "quantizing while loading is not there yet"),
        (["-m", "x", "hi"], "No such command 'hi'"),
    ],
)
def test_what_does_not_go_together(asked, arguments, message):
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.stdout, asked) == (2, "", {})
    assert message in " ".join(result.stderr.split())


def test_a_model_answers(rig, tmp_path):
    folder = rig.save(tmp_path / "model", rig.chain_model({10: 111, 111: 107, 107: 258}), rig.byte_tokenizer())
    result = CliRunner().invoke(app, ["-m", str(folder), "--device", "cpu"], input="hi\n")
    assert (result.exit_code, result.stdout) == (0, "ok\n"), result.output


@pytest.fixture
def machine(monkeypatch):
    def set_up(cpu, memory, gpus=(), nodes=0):
        for name, value in {
            "detect_cpu": cpu,
            "detect_memory": memory,
            "visible_gpus": gpus,
            "numa_nodes": nodes,
        }.items():
            monkeypatch.setattr(hardware, name, lambda value=value: value)
        monkeypatch.setattr(hardware, "processor_caches", lambda: [])
        monkeypatch.setattr(hardware, "driver_version", lambda: "570.1" if gpus else None)

    return set_up


def test_hardware_is_told(machine):
    cpu = Cpu("Some CPU", frozenset({"avx2", "lm", "avx512_vnni"}), 4, 8, 6)
    gpus = (Gpu(0, "NVIDIA H200", 140 << 30, 139 << 30, "9.0"), Gpu(1, "NVIDIA L4"))
    machine(cpu, Memory(64 << 30, 60 << 30, 32 << 30), gpus, 2)
    text = CliRunner().invoke(app, ["--hardware"]).stdout
    assert "4 physical, 8 logical, 6 usable" in text and "avx2 avx512_vnni\n" in text
    assert "64.0 GiB, 60.0 GiB available" in text and "32.0 GiB\n" in text
    assert "0: NVIDIA H200, 140.0 GiB, 139.0 GiB free, compute capability 9.0" in text
    assert f"1: NVIDIA L4, {UNKNOWN}, {UNKNOWN} free" in text and "570.1" in text
    facts = json.loads(CliRunner().invoke(app, ["--hardware", "--json"]).stdout)
    assert facts["cpu"]["flags"] == ["avx2", "avx512_vnni"] and facts["cpu"]["numa_nodes"] == 2
    assert facts["gpus"][1] == {
        "index": 1,
        "name": "NVIDIA L4",
        "total_bytes": None,
        "free_bytes": None,
        "capability": None,
    }


def test_what_is_unknown_is_called_so(machine):
    machine(Cpu(UNKNOWN, frozenset(), 1, 1, 1), Memory(0, 0, None))
    lines = CliRunner().invoke(app, ["--hardware"]).stdout.splitlines()
    told = dict(line.strip().split("  ", 1) for line in lines if "  " in line.strip())
    assert {told[name].strip() for name in ("CPU", "NUMA nodes", "caches", "flags")} == {UNKNOWN}
    assert told["GPU"].strip() == "none seen" and told["RAM"].strip() == f"{UNKNOWN}, {UNKNOWN} available"
