"""Matrix products: figures, and a check that wrong products fail."""

from __future__ import annotations

import pytest
import torch

from ktitan.bench import gemm
from ktitan.bench.gemm import TOLERANCE, gemm_results, gemv_results, product_fault
from ktitan.bench.measure import Pairing, Timing
from ktitan.bench.memory import aligned_buffer, fill
from ktitan.bench.team import Team
from ktitan.errors import UnsupportedError
from ktitan.hardware import Cpu, Hardware, Memory

MACHINE = Hardware(Cpu("c", frozenset(), 2, 2, 2), Memory(1 << 34, 1 << 34, None))


@pytest.fixture(scope="module")
def buffer():
    made = aligned_buffer(16 << 20)
    with Team(2) as team:
        fill(made, team)
    return made


@pytest.fixture(autouse=True)
def short_runs(monkeypatch):
    monkeypatch.setattr(gemm, "RUN_SECONDS", 0.002)


@pytest.fixture(autouse=True)
def short_runs_on_one_thread(monkeypatch):
    monkeypatch.setattr(gemm, "RUN_SECONDS", 0.002)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_gemm_in_three_formats():
    results = gemm_results(0.01, rows=32, out=96, hidden=64)
    assert [result.case for result in results] == [f"gemm-{name}-32x96x64" for name in ("f32", "bf16", "int8")]
    assert [result.unit for result in results] == ["GFLOP/s", "GFLOP/s", "GOP/s"]
    assert all(result.value > 0 and result.ceiling is None for result in results)


def test_gemm_counts_two_operations_a_product(monkeypatch):
    monkeypatch.setattr(gemm, "measure", lambda *_args, **_more: Timing((0.5,)))
    for result in gemm_results(0.01, rows=8, out=16, hidden=32):
        assert result.value == pytest.approx(2 * 8 * 16 * 32 / 0.5e9)


def test_gemv_stands_beside_the_read_ceiling(buffer):
    results = gemv_results(buffer, MACHINE, 0.01, out=256, hidden=128)
    assert [result.case for result in results] == [f"gemv-{name}-256x128" for name in ("f32", "bf16", "int8")]
    matrices = [(16 << 20) // (256 * 128 * width) for width in (4, 2, 1)]
    for result, count in zip(results, matrices, strict=True):
        assert f"{count} matrices" in result.metric
        assert result.value > 0
        assert result.ceiling > 0


def test_gemv_counts_the_bytes_of_its_weights(buffer, monkeypatch):
    monkeypatch.setattr(gemm, "repeats", lambda *_args: 3)
    monkeypatch.setattr(gemm, "interleave", lambda *_args, **_more: Pairing(Timing((0.5,)), Timing((0.25,))))
    for result, width in zip(gemv_results(buffer, MACHINE, 0.01, out=256, hidden=128), (4, 2, 1), strict=True):
        weights_rate, read_rate = 3 * 4 * 256 * 128 * width / 0.5e9, (16 << 20) / 0.25e9
        assert result.value == pytest.approx(weights_rate)
        assert result.ceiling == pytest.approx(read_rate)
        assert result.share_of_ceiling == pytest.approx(weights_rate / read_rate)


def wrong_product(name, spoil):
    right = gemm._product(name)
    return lambda x, weight: spoil(right(x, weight))


@pytest.mark.parametrize("name", list(TOLERANCE))
def test_right_products_pass(name):
    x, weight = gemm._random(40, 200, name), gemm._random(48, 200, name)
    assert product_fault(lambda: gemm._product(name)(x, weight), x, weight, TOLERANCE[name]) is None


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("f32", lambda out: out * 1.001),
        ("f32", lambda out: out * float("nan")),
        ("bf16", lambda out: out.roll(1, 1)),
        ("int8", lambda out: out + 1),
    ],
)
def test_wrong_products_do_not(name, spoil):
    x, weight = gemm._random(8, 200, name), gemm._random(48, 200, name)
    fault = product_fault(lambda: wrong_product(name, spoil)(x, weight), x, weight, TOLERANCE[name])
    assert fault is not None


def test_nothing_is_timed_after_a_wrong_product(monkeypatch, buffer):
    right = gemm._product
    monkeypatch.setattr(gemm, "_product", lambda name: lambda x, weight: -right(name)(x, weight))
    with pytest.raises(UnsupportedError, match="gemm-f32"):
        gemm_results(0.01, rows=16, out=32, hidden=32)
    with pytest.raises(UnsupportedError, match="gemv-f32"):
        gemv_results(buffer, MACHINE, 0.01, out=32, hidden=32)


def test_int8_products_are_exact():
    x, weight = gemm._random(3, 2048, "int8"), gemm._random(5, 2048, "int8")
    assert torch.equal(gemm._product("int8")(x, weight).long(), x.long() @ weight.long().T)
