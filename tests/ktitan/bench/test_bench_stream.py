"""The bench with stand-ins for the programs that it runs: what it asks them, compares, counts and refuses."""

import json
import os
import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ktitan.bench import stream
from ktitan.bench.stream import Case
from ktitan.cli.main import app
from ktitan.errors import BudgetError, UnsupportedError

TOKENS = 5

# Both programs: `about` is the line when ready; each request is answered with `answer`, after checking it.
STAND_IN = """
import json, os, signal, sys, time
about, answer = json.loads(sys.argv[1])
print(about if isinstance(about, str) else json.dumps(about), flush=True)
for line in sys.stdin:
    ids, following = json.loads(line)
    if answer is None:
        sys.exit("it fell over")
    if answer["ms"] < 0:
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(60)
    assert all(3 <= token < 50 for token in ids + following), ids
    steps = [0.001 * answer["ms"]] * len(following)
    fields = {**answer, "prefill": 0.5, "steps": steps}
    if answer["peer"]:
        fields = [fields[name] for name in ("prefill", "steps", "read_bytes")]
    print(json.dumps(fields), flush=True)
"""
ABOUT = {"vocabulary": 50, "budgeted": True, "streams": True, "record_bytes": 4096, "token_bytes": 1, "seconds": 0.1}
STORE = {
    **{"demands": 40, "hits": 30, "misses": 10, "evictions": 4, "stall_ns": 10_000_000, "io_wanted_bytes": 980_000},
    **{"steps": 5, "policy": -3, "policy_changes": 1, "predicted": 40, "predicted_right": 30},
    **{"guesses": 10, "guesses_used": 6, "guesses_late": 2, "guesses_wasted": 3},
}
OURS = {
    "peer": False,
    "ms": 4,
    "read_bytes": 1_000_000,
    "logits": "a",
    "chosen": "b",
    "store": {**STORE, "io_read_bytes": 990_000},
    "after": {"policy": 2, "guess_level": 1},
}


@pytest.fixture
def stand_ins(tmp_path, monkeypatch):
    """Set what each program says; the model is a file of zeros."""
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    (tmp_path / "model.gguf").write_bytes(b"\0" * (1 << 20))
    said = {
        "rate": 1e9,
        "program": ({"budgeted": False, "vocabulary": 50}, {**OURS, "store": {}}),
        "resident": ({**ABOUT, "budgeted": False, "streams": False}, {**OURS, "ms": 2, "store": {}}),
        "streamed": (ABOUT, OURS),
        "peer": ("ready", {"peer": True, "ms": 8, "read_bytes": 3_000_000}),
    }

    def command(name):
        return [sys.executable, "-S", str(tmp_path / "stand_in.py"), json.dumps(said[name])]

    def ours(case, model, budget, rules, cache=None):
        if model == case.peer_model:
            said["peer"] = said["peer"] if said["peer"][0] == ABOUT else (ABOUT, {**OURS, "ms": 8})
            return command("peer")
        return command("streamed" if budget else "resident" if model == case.model else "program")

    monkeypatch.setattr("ktitan.bench.record_reads.RecordReads.rate", lambda reads: said["rate"])
    monkeypatch.setattr(stream, "_our_command", ours)
    monkeypatch.setattr(stream, "_peer_command", lambda case, file: command("peer"))
    said["case"] = Case(str(tmp_path / "model.gguf"), ram="512KiB", peer="llamacpp", tokens=TOKENS, pairs=2, prompt=3)
    return said


def rows(case):
    found = {result.case.removesuffix("-model"): result for result in stream.run(case)}
    assert len(found) == len({*found})
    for result in found.values():
        json.loads(result.to_json())
    return found


def test_every_figure(stand_ins):
    found = rows(stand_ins["case"])
    decode = found["stream-decode"]
    assert decode.value == pytest.approx(250) and decode.peer_value == pytest.approx(125)
    assert decode.ratio_to_peer == pytest.approx(2) and decode.runs == 2
    assert decode.ceiling == pytest.approx(500) and decode.share_of_ceiling == pytest.approx(0.5)
    assert found["stream-drive"].ceiling == 1 and found["stream-drive"].value == pytest.approx(0.049)
    for words in ("5 random tokens after 3", "budget 1 MB", "no group", "cold", "read-ahead", "load average"):
        assert words in decode.metric
    assert found["stream-step-median"].value == pytest.approx(4) == found["stream-step-p90"].value
    assert found["stream-step-p90"].peer_value == pytest.approx(8)
    assert found["stream-read"].value == pytest.approx(0.2) and found["stream-read"].peer_value == pytest.approx(0.6)
    assert found["stream-hits"].value == pytest.approx(75)
    assert "30 hits + 10 misses of 40 demands" in found["stream-hits"].metric
    assert found["stream-counted"].share_of_ceiling == pytest.approx(0.99)
    assert found["stream-stall"].value == pytest.approx(2)
    assert found["stream-stall-share"].value == pytest.approx(50)
    assert "policy lfu, changed 1 times" in found["stream-hits"].metric
    assert (found["stream-recall"].value, found["stream-waste"].value) == (pytest.approx(75), pytest.approx(30))
    assert "10 guesses, 6 used, 2 of these late" in found["stream-waste"].metric
    assert "stream-recall-misses" not in found
    assert found["stream-resident"].value == pytest.approx(500)
    assert found["stream-peak"].value > 1 and found["stream-peak"].ceiling > 64


def test_a_slow_drive_is_the_ceiling(stand_ins):
    stand_ins["rate"] = 70e6  # 14 ms for what is missing, where computing takes 10 and the run took 20
    decode = rows(stand_ins["case"])["stream-decode"]
    assert decode.ceiling == pytest.approx(TOKENS / 0.014) and decode.share_of_ceiling == pytest.approx(0.7)


def test_no_peer_and_nothing_in_ram(stand_ins):
    found = rows(replace(stand_ins["case"], peer=None, resident=False))
    assert found["stream-decode"].peer_value is None and found["stream-decode"].ratio_to_peer is None
    assert "stream-resident" not in found and "compute in RAM was not measured" in found["stream-decode"].metric


def test_other_files_are_a_peer(stand_ins, tmp_path):
    (tmp_path / "folder").mkdir()
    case = replace(stand_ins["case"], peer="ktitan", peer_model=str(tmp_path / "folder"))
    assert rows(case)["stream-decode"].ratio_to_peer == pytest.approx(2)
    stand_ins["peer"] = (ABOUT, {**OURS, "logits": "another"})
    with pytest.raises(UnsupportedError, match="logits of the streamed model differ from those of the peer"):
        stream.run(case)


@pytest.mark.parametrize("field", ["logits", "chosen"])
def test_other_numbers_have_no_speed(stand_ins, field):
    stand_ins["streamed"] = (ABOUT, {**OURS, field: "another"})
    with pytest.raises(UnsupportedError, match=f"{field} of the streamed model differ from those of the model in RAM"):
        stream.run(stand_ins["case"])


def test_what_ends_or_refuses_is_named(stand_ins):
    case = stand_ins["case"]
    stand_ins["streamed"] = (ABOUT, None)
    with pytest.raises(UnsupportedError, match="the streamed model ended without an answer: it fell over"):
        stream.run(case)
    stand_ins["streamed"] = ({"error": "no room", "where": "budget", "remedy": "more"}, None)
    with pytest.raises(UnsupportedError, match=r"budget: no room(?s:.*)remedy: more"):
        stream.run(case)
    stand_ins["streamed"] = ({**ABOUT, "streams": False}, OURS)
    with pytest.raises(UnsupportedError, match="nothing is streamed"):
        stream.run(case)
    stand_ins["streamed"], stand_ins["peer"] = (ABOUT, OURS), ("llama-cpp-python cannot be imported: no", None)
    with pytest.raises(UnsupportedError, match=r"(?s)cannot be imported: no.*--peer-python"):
        stream.run(case)


def test_sigterm_ends_what_runs(stand_ins):
    before, children = signal.getsignal(signal.SIGTERM), Path(f"/proc/self/task/{os.getpid()}/children")
    running = children.read_text()
    stand_ins["peer"] = ("ready", {"peer": True, "ms": -1})
    started = time.monotonic()
    with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)):
        stream.run(stand_ins["case"])
    assert time.monotonic() - started < 30 and signal.getsignal(signal.SIGTERM) is before
    assert children.read_text() == running


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ram": None}, "nothing limits the memory"),
        ({"peer": "vllm"}, "no peer 'vllm'"),
        ({"model": "folder"}, "GGUF files only"),
        ({"peer": "ktitan"}, "both sides would be the same"),
        ({"ram": None, "limit": "half%"}, "'half%' is no share"),
    ],
)
def test_options_that_cannot_be(stand_ins, change, message):
    with pytest.raises(UnsupportedError, match=message):
        stream.run(replace(stand_ins["case"], **change))


def test_a_limit_is_a_size_or_a_share_beside_the_program():
    slack, case = stream.SLACK_BYTES, Case("m")
    assert stream._sizes(replace(case, limit="50%"), 1000, 30) == (500 + 30 + slack, 500)
    assert stream._sizes(replace(case, limit="1GiB"), 1000, 30) == (1 << 30, (1 << 30) - 30 - slack)
    assert stream._sizes(replace(case, limit="1GiB", ram="1KiB"), 1000, 30) == (1 << 30, 1024)
    assert stream._sizes(replace(case, ram="1KiB"), 1000, 30) == (None, 1024)
    with pytest.raises(BudgetError, match="program itself takes"):
        stream._sizes(replace(case, limit="1MiB"), 1000, 30)


def test_files_of_a_model_on_two_drives(tmp_path):
    for name in ("model/a.safetensors", "model/config.json", "drive/b.safetensors", "model/other/c.safetensors"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "model" / "stripe-1").symlink_to(tmp_path / "drive")
    assert [path.name for path in stream._files(str(tmp_path / "model"))] == ["a.safetensors", "b.safetensors"]


def test_the_command_line_refuses_with_a_remedy(stand_ins):
    result = CliRunner().invoke(app, ["bench", "stream", stand_ins["case"].model])
    assert isinstance(result.exception, UnsupportedError) or "nothing limits the memory" in result.output


def test_the_tiny_model_streams_with_the_same_bits(tiny_gguf, monkeypatch):
    monkeypatch.setattr(stream, "_program_bytes", lambda case: 400 << 20)
    case = Case(str(tiny_gguf), ram="26MiB", tokens=TOKENS, prompt=3, pairs=1, threads=1)
    found = {result.case.removesuffix(f"-{tiny_gguf.stem}"): result for result in stream.run(case)}
    hits, misses, demands = map(int, re.findall(r"\d+", found["stream-hits"].metric)[:3])
    assert hits + misses == demands > 0 and misses > 0
    assert found["stream-decode"].value > 0 and found["stream-decode"].share_of_ceiling > 0
    assert found["stream-read"].value == 0 or 0.98 <= found["stream-counted"].share_of_ceiling <= 1.02  # 0: tmpfs
