"""`ktitan` without a command: the chat's options, the machine, and what does not go together."""

import inspect
import json

import pytest
from typer.testing import CliRunner

from ktitan.cli import hardware, hardware_measure, root, serve
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
        (["--hardware", "-p", "x"], "--hardware goes alone"),
        (["--measure"], "--measure goes with --hardware"),
        (["-m", "x", "--host", "localhost", "--no_auth"], "--host, --no-auth: needs --serve"),
        (["-m", "x", "--serve", "-p", "hi", "--temp", "1"], "--prompt, --temp: not with --serve"),
        (["--serve"], "no model: ktitan -m MODEL"),
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


def test_the_server_gets_its_options(monkeypatch):
    seen = {}
    monkeypatch.setattr(serve, "start_server", lambda model, **options: seen.update(options, model=model))
    words = "-m x --serve --host 0.0.0.0 --port 0 --api-key k --context 99 --ram 1GiB --kv bf16 --queue 3 --threads 2"
    result = CliRunner().invoke(app, words.split())
    assert (result.exit_code, result.stdout) == (0, ""), result.output
    assert (seen["model"], seen["host"], seen["port"], seen["api_keys"]) == ("x", "0.0.0.0", 0, ("k",))
    assert (seen["queue_limit"], seen["context_tokens"], seen["threads"]) == (3, 99, 2)
    assert (seen["load"]["budget"], seen["load"]["kv"]) == ("ram=1GiB", "bf16")


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
    gpus = (Gpu(0, "NVIDIA H200", 140 << 30, 139 << 30, "9.0", "gen 5 x16"), Gpu(1, "NVIDIA L4"))
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
        "pcie": None,
        "h2d_gb_per_s": None,
        "d2h_gb_per_s": None,
    }
    assert "PCIe          gen 5 x16\n" in text
    assert facts["drive"] is None and facts["memory"]["read_gb_per_s"] is None


def test_what_is_measured_is_told(machine, monkeypatch, tmp_path):
    machine(Cpu("Some CPU", frozenset(), 4, 8, 6), Memory(64 << 30, 60 << 30, None), (Gpu(0, "H200"),))
    (tmp_path / "weights.gguf").write_bytes(bytes(2 << 20))
    monkeypatch.setattr(hardware_measure, "SECONDS", 0.01)
    monkeypatch.setattr(hardware_measure, "_memory_rate", lambda: 12.5)
    monkeypatch.setattr(hardware_measure, "_add_pcie", lambda gpus: gpus[0].update(h2d_gb_per_s=55.0))
    text = CliRunner().invoke(app, ["--hardware", "-m", str(tmp_path)]).stdout
    assert "read          12.5 GB/s" in text and "PCIe          unknown, h2d 55 GB/s" in text
    assert "sequential " in text and "random 4KiB " in text
    facts = json.loads(CliRunner().invoke(app, ["--hardware", "--measure", "-m", str(tmp_path), "--json"]).stdout)
    assert facts["drive"]["file"] == str(tmp_path / "weights.gguf")
    assert facts["drive"]["sequential_gb_per_s"] > 0 < facts["drive"]["random_128KiB_gb_per_s"]
    assert [file.name for file in tmp_path.iterdir()] == ["weights.gguf"]  # nothing is written


def test_memory_is_measured_without_torch(monkeypatch):
    monkeypatch.setattr(hardware_measure, "SECONDS", 0.01)
    monkeypatch.setattr("ktitan.bench.memory.LEAST_BYTES", 4 << 20)
    facts = {"memory": {}, "gpus": []}
    hardware_measure.add_measured(facts, None)
    assert facts["memory"]["read_gb_per_s"] > 0 and "drive" not in facts


@pytest.mark.parametrize("model", ["org/none", "nowhere", "/nowhere/at/all", ""])
def test_a_model_that_is_not_here_cannot_be_measured(monkeypatch, tmp_path, model):
    monkeypatch.setattr("ktitan.hub.cache.cache_folder", lambda: tmp_path)
    result = CliRunner().invoke(app, ["--hardware", "-m", model])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no such model on this machine" in result.stderr


def test_a_model_without_a_file_to_read_and_one_of_the_hub(monkeypatch, tmp_path):
    monkeypatch.setattr("ktitan.hub.cache.cache_folder", lambda: tmp_path)
    blob = tmp_path / "models--org--name" / "blobs" / "abc"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(bytes(100))
    assert "no file of at least 1 MiB" in CliRunner().invoke(app, ["--hardware", "-m", "org/name:Q4_K_M"]).stderr
    blob.write_bytes(bytes(1 << 20))
    assert hardware_measure._largest_file("org/name@main") == blob


def test_what_is_unknown_is_called_so(machine):
    machine(Cpu(UNKNOWN, frozenset(), 1, 1, 1), Memory(0, 0, None))
    lines = CliRunner().invoke(app, ["--hardware"]).stdout.splitlines()
    told = dict(line.strip().split("  ", 1) for line in lines if "  " in line.strip())
    assert {told[name].strip() for name in ("CPU", "NUMA nodes", "caches", "flags")} == {UNKNOWN}
    assert told["GPU"].strip() == "none seen" and told["RAM"].strip() == f"{UNKNOWN}, {UNKNOWN} available"
