"""The ceilings of one CUDA device: copy on the device, pinned copies over PCIe, a bf16 matrix product.

Times come from CUDA events, so they are those of the device's stream; pieces are issued by torch one copy each, as a
streaming engine that works from Python would.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ktitan.bench.gemm import TOLERANCE, product_fault
from ktitan.bench.measure import Run, interleave, measure
from ktitan.bench.result import Result
from ktitan.hardware import Gpu

if TYPE_CHECKING:
    import torch

__all__ = ["cuda_clock", "gpu_results", "transfer_result"]

COPY_BYTES = 1 << 30
TRANSFER_BYTES = 256 << 20
TRANSFER_METRIC = "pinned copy, one torch call a piece"
PIECE_BYTES = {"4MiB": 4 << 20, "1MiB": 1 << 20, "256KiB": 256 << 10}
GEMM_SIZE = 8192
MAX_RUNS = 1000


def gpu_results(gpu: Gpu, seconds: float) -> list[Result]:
    """All cases on `gpu`, about `seconds` each; the PCIe cases of one direction share a double turn.

    Raises:
        UnsupportedError: a copy or product came out wrong.
    """
    import torch

    with torch.cuda.device(gpu.index):
        results = [_copy_result(gpu, seconds)]
        for direction in ("h2d", "d2h"):
            results += _transfer_results(gpu, direction, seconds / 2)
        results.append(_gemm_result(gpu, seconds))
        torch.cuda.empty_cache()
    return results


def cuda_clock(run: Run) -> float:
    """Seconds on the current stream between what was queued before `run()` and the end of what it queued."""
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def _copy_result(gpu: Gpu, seconds: float) -> Result:
    """Copy of 1 GiB (less on a small or full device), counted as bytes read plus bytes written."""
    import torch

    size_bytes = min(COPY_BYTES, gpu.free_bytes // 4)
    source = torch.randint(0, 256, (size_bytes,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy = functools.partial(target.copy_, source)
    case = f"gpu{gpu.index}-copy"
    check = functools.partial(_copy_fault, copy, target, source)
    timing = measure(copy, MAX_RUNS, seconds=seconds, check=check, clock=cuda_clock, case=case)
    return Result(
        case=case,
        metric=f"device copy of {size_bytes >> 20} MiB, read + write",
        value=timing.rate(2 * size_bytes / 1e9),
        unit="GB/s",
        runs=timing.runs,
        spread=timing.spread,
    )


def transfer_result(gpu: Gpu, direction: str, seconds: float) -> Result:
    """Pinned copies of 256 MiB to the device ("h2d") or from it ("d2h"), in about `seconds`.

    Raises:
        UnsupportedError: a copy came out wrong.
    """
    import torch

    with torch.cuda.device(gpu.index):
        return _whole_result(gpu, direction, seconds, *_transfer_buffers(direction))


def _transfer_buffers(direction: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Target and source of the copies."""
    import torch

    host = torch.randint(0, 256, (TRANSFER_BYTES,), dtype=torch.uint8).pin_memory()
    device = torch.empty(TRANSFER_BYTES, dtype=torch.uint8, device="cuda")
    if direction == "d2h":
        device.random_(0, 256)
    return (device, host) if direction == "h2d" else (host, device)


def _whole_result(gpu: Gpu, direction: str, seconds: float, target: torch.Tensor, source: torch.Tensor) -> Result:
    whole, case = _pieces(target, source, TRANSFER_BYTES), f"gpu{gpu.index}-{direction}-256MiB"
    check = functools.partial(_copy_fault, whole, target, source)
    timing = measure(whole, MAX_RUNS, seconds=seconds, check=check, clock=cuda_clock, case=case)
    rate = timing.rate(TRANSFER_BYTES / 1e9)
    return Result(case, TRANSFER_METRIC, rate, "GB/s", runs=timing.runs, spread=timing.spread)


def _transfer_results(gpu: Gpu, direction: str, seconds: float) -> list[Result]:
    """Pinned copies of 256 MiB in one way, whole (the ceiling) and in pieces."""
    target, source = _transfer_buffers(direction)
    results = [_whole_result(gpu, direction, seconds, target, source)]
    whole, amount, case = _pieces(target, source, TRANSFER_BYTES), TRANSFER_BYTES / 1e9, f"gpu{gpu.index}-{direction}"
    for name, piece_bytes in PIECE_BYTES.items():
        pieces = _pieces(target, source, piece_bytes)
        target.zero_()
        check = functools.partial(_copy_fault, pieces, target, source)
        pairing = interleave(
            pieces, whole, MAX_RUNS, seconds=seconds, check=check, clock=cuda_clock, case=f"{case}-{name}"
        )
        results.append(
            Result(
                case=f"{case}-{name}",
                metric=TRANSFER_METRIC,
                value=pairing.a.rate(amount),
                unit="GB/s",
                ceiling=pairing.b.rate(amount),
                share_of_ceiling=pairing.ratio(),
                runs=pairing.a.runs,
                spread=pairing.a.spread,
            )
        )
    return results


def _pieces(target: torch.Tensor, source: torch.Tensor, piece_bytes: int) -> Run:
    """A run that copies all of `source`, one asynchronous copy a piece; the views are made beforehand."""
    views = list(zip(target.split(piece_bytes), source.split(piece_bytes), strict=True))

    def run() -> None:
        for into, from_ in views:
            into.copy_(from_, non_blocking=True)

    return run


def _copy_fault(run: Run, target: torch.Tensor, source: torch.Tensor) -> str | None:
    import torch

    run()
    torch.cuda.synchronize()
    return None if torch.equal(target.cpu(), source.cpu()) else "the copy differs from its source"


def _gemm_result(gpu: Gpu, seconds: float) -> Result:
    """[8192, 8192] x [8192, 8192]^T in bf16."""
    import torch

    x, weight = (torch.rand(GEMM_SIZE, GEMM_SIZE, device="cuda").sub_(0.5).bfloat16() for _ in range(2))
    product = functools.partial(torch.nn.functional.linear, x, weight)
    case = f"gpu{gpu.index}-gemm-bf16-{GEMM_SIZE}"
    check = functools.partial(product_fault, product, x, weight, TOLERANCE["bf16"])
    timing = measure(product, MAX_RUNS, seconds=seconds, check=check, clock=cuda_clock, case=case)
    return Result(
        case=case,
        metric="matrix product",
        value=timing.rate(2 * GEMM_SIZE**3 / 1e12),
        unit="TFLOP/s",
        runs=timing.runs,
        spread=timing.spread,
    )
