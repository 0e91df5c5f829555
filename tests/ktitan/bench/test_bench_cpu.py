from types import SimpleNamespace

import numpy as np
import pytest

from ktitan.bench import cpu
from ktitan.errors import UnsupportedError


@pytest.fixture
def small_reads(monkeypatch):
    monkeypatch.setattr(cpu, "buffer_bytes", lambda hardware: 4 << 20)


def row(operator, size, path=""):
    return SimpleNamespace(operator=operator, bytes=size, path=path)


def fake_model(rows, **entries):
    values = {"tie_word_embeddings": False, **entries}
    config = SimpleNamespace(**values)
    config.get_text_config = lambda decoder: config
    return SimpleNamespace(config=config, ktitan=SimpleNamespace(plan=SimpleNamespace(rows=rows)))


def test_a_token_reads_chosen_experts_and_no_table():
    rows = [row("linear.cpu", 100), row("experts.cpu", 800), row("embedding.cpu", 5000), row("keep", 7)]
    assert cpu.token_bytes(fake_model(rows, num_experts_per_tok=2, n_routed_experts=16)) == 100 + 100 + 7
    assert cpu.token_bytes(fake_model(rows[:1])) == 100


def test_a_tied_table_is_read_as_the_head():
    rows = [row("linear.cpu", 100), row("linear.cpu", 0, "lm_head"), row("embedding.cpu", 5000)]
    assert cpu.token_bytes(fake_model(rows, tie_word_embeddings=True)) == 5100


def test_both_phases_of_the_tiny_model(tiny_gguf, small_reads):
    results = cpu.run(tiny_gguf, prompt=9, new=3, rounds=3, threads=1)
    assert [result.case for result in results] == [f"cpu-{case}-{tiny_gguf.stem}" for case in ("prefill-9", "decode-3")]
    prefill, decode = results
    assert prefill.value > decode.value > 0
    assert prefill.ceiling is None and decode.ceiling > 0 and decode.share_of_ceiling > 0
    assert {result.unit for result in results} == {"tokens/s"}
    assert {result.runs for result in results} == {3}
    assert {result.peer_value for result in results} == {None}


LLAMA = """
import time

class Llama:
    def __init__(self, path, **options):
        assert options["n_ctx"] == 20 and options["n_threads"] == 1

    def reset(self):
        pass

    def eval(self, tokens):
        assert len(tokens) in (9, 1)
        time.sleep(0.00001)
"""


def test_the_peer_runs_the_same_tokens_in_its_own_process(tiny_gguf, small_reads, tmp_path, monkeypatch):
    (tmp_path / "llama_cpp.py").write_text(LLAMA)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    results = cpu.run(tiny_gguf, peer="llamacpp", prompt=9, new=3, rounds=3, threads=1)
    assert all(result.peer == "llamacpp" and result.ratio_to_peer < 1 < result.peer_value for result in results)


def test_what_a_peer_cannot_do(tiny_gguf, tmp_path, monkeypatch):
    with pytest.raises(UnsupportedError, match="no peer 'vllm'"):
        cpu.llamacpp(tiny_gguf, "vllm", 1, 8)
    with pytest.raises(UnsupportedError, match="GGUF files only"):
        cpu.llamacpp(tmp_path, "llamacpp", 1, 8)
    (tmp_path / "llama_cpp.py").write_text("raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(UnsupportedError, match=r"(?s)cannot be imported.*pip install llama-cpp-python"):
        cpu.llamacpp(tiny_gguf, "llamacpp", 1, 8)


def test_rounds_alternate_and_leave_out_the_first():
    order = []

    def side(name, seconds):
        def run(ids, new):
            order.append(name)
            return seconds, seconds

        return run

    case = cpu.Case(prompt=4, new=1, rounds=3)
    columns = cpu.timed_rounds(side("ours", 1.0), side("peer", 2.0), lambda: 0, np.arange(4), case, lambda text: None)
    assert order == ["ours", "peer", "peer", "ours", "ours", "peer", "peer", "ours"]
    assert columns["ours prefill"] == [1.0] * 3 and columns["peer decode"] == [2.0] * 3
