"""The read kernel and its buffer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ktitan.bench import memory
from ktitan.bench.measure import Pairing, Timing
from ktitan.bench.memory import aligned_buffer, buffer_bytes, fill, memory_results, reader
from ktitan.bench.team import Team
from ktitan.errors import UnsupportedError
from ktitan.hardware import Cpu, Hardware, Memory

MIB = 1 << 20


def machine(available_bytes=64 << 30, cpus=2):
    return Hardware(Cpu("c", frozenset(), cpus, cpus, cpus), Memory(available_bytes, available_bytes, None))


@pytest.mark.parametrize(
    ("cache_mib", "available_mib", "expected_mib"),
    [(0, 1 << 20, 512), (32, 1 << 20, 512), (300, 1 << 20, 1200), (300, 2000, 500), (32, 8, 64), (32, 0, 512)],
)
def test_buffer_size(monkeypatch, cache_mib, available_mib, expected_mib):
    monkeypatch.setattr(memory, "last_level_cache_bytes", lambda: cache_mib * MIB)
    assert buffer_bytes(machine(available_mib * MIB)) == expected_mib * MIB


def test_buffer_starts_on_a_huge_page():
    buffer = aligned_buffer(6 * MIB)
    assert buffer.ctypes.data % (2 * MIB) == 0
    assert buffer.shape == (6 * MIB,)
    buffer[:] = 1
    assert int(buffer.sum()) == 6 * MIB


def test_fill_makes_moderate_numbers_in_every_format():
    buffer = aligned_buffer(18 * MIB)
    with Team(3) as team:
        fill(buffer, team)
    for dtype in (torch.bfloat16, torch.float32):
        values = torch.from_numpy(buffer).view(dtype).double().abs()
        assert float(values.min()) >= 2**-7
        assert float(values.max()) < 1
    assert np.unique(buffer).size > 200


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("passes", [1, 3])
def test_reader_sums_every_word_and_wraps(threads, passes):
    words = np.random.default_rng().integers(-(2**63), 2**63 - 1, 100_003, dtype=np.int64)
    with Team(threads) as team:
        found = reader(words.view(np.uint8), team, passes)()
    expected = sum(int(word) for word in words) * passes
    assert -(2**63) <= found < 2**63
    assert (found - expected) % 2**64 == 0


def test_results_for_one_and_for_all_threads(monkeypatch):
    monkeypatch.setattr(memory, "last_level_cache_bytes", lambda: 0)
    buffer = aligned_buffer(16 * MIB)
    with Team(2) as team:
        fill(buffer, team)
    before = torch.get_num_threads()
    results = memory_results(buffer, machine(), 0.02)
    assert torch.get_num_threads() == before
    assert [result.case for result in results] == ["memory-read-1t", "memory-read-2t"]
    for result in results:
        assert result.value > 0
        assert (result.unit, result.peer) == ("GB/s", "torch.sum")
        assert result.peer_value > 0
        assert result.ratio_to_peer > 0
        assert result.runs >= 1
        assert "16 MiB" in result.metric
        assert "cache" not in result.metric


def test_rates_count_every_pass_over_the_buffer(monkeypatch):
    monkeypatch.setattr(memory, "repeats", lambda *_args: 5)
    monkeypatch.setattr(memory, "interleave", lambda *_args, **_more: Pairing(Timing((0.5,)), Timing((2.0,))))
    (result,) = memory_results(aligned_buffer(16 * MIB), machine(cpus=1), 0.01)
    assert result.value == pytest.approx(5 * 16 * MIB / 0.5e9)
    assert result.peer_value == pytest.approx(5 * 16 * MIB / 2e9)
    assert result.ratio_to_peer == 4.0


def test_a_buffer_that_the_cache_may_hold_is_named(monkeypatch):
    monkeypatch.setattr(memory, "last_level_cache_bytes", lambda: 300 * MIB)
    (result,) = memory_results(aligned_buffer(16 * MIB), machine(cpus=1), 0.01)
    assert "cache 300 MiB" in result.metric


def test_a_kernel_that_skips_a_word_is_caught(monkeypatch):
    buffer = aligned_buffer(16 * MIB)
    buffer[:] = 1
    monkeypatch.setattr(memory, "_sum_kernel", lambda: lambda words: int(words[1:].sum()))
    with pytest.raises(UnsupportedError, match="sum to"):
        memory_results(buffer, machine(cpus=1), 0.01)
