"""Matrix products on the processor: GEMM as the ceiling of prefill, one row (GEMV) against the memory read ceiling.

f32 and bf16 run through `torch.nn.functional.linear`, int8 through `torch._int_mm` (int32 sums). One row streams
through as many weight matrices as fit the read buffer, so no cache serves them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ktitan.bench.measure import Run, interleave, measure, repeats, settled_clock, verify
from ktitan.bench.memory import reader
from ktitan.bench.result import Result
from ktitan.bench.team import Team
from ktitan.hardware import Hardware

if TYPE_CHECKING:
    import torch

__all__ = ["gemm_results", "gemv_results", "product_fault"]

ROWS, OUT, HIDDEN = 512, 4096, 2048
MAX_RUNS = 1000
RUN_SECONDS = 0.05
# Largest error over the largest output that rounding explains; an int8 product is exact.
TOLERANCE = {"f32": 1e-4, "bf16": 2e-2, "int8": 0.0}


def gemm_results(seconds: float, rows: int = ROWS, out: int = OUT, hidden: int = HIDDEN) -> list[Result]:
    """[rows, hidden] x [out, hidden]^T in each format, with torch's present threads; about `seconds` each."""
    import torch

    results = []
    for name in TOLERANCE:
        x, weight = _random(rows, hidden, name), _random(out, hidden, name)
        product = functools.partial(_product(name), x, weight)
        check = functools.partial(product_fault, product, x, weight, TOLERANCE[name])
        case = f"gemm-{name}-{rows}x{out}x{hidden}"
        timing = measure(product, MAX_RUNS, seconds=seconds, check=check, case=case)
        results.append(
            Result(
                case=case,
                metric=f"matrix product, {torch.get_num_threads()} threads",
                value=timing.rate(2 * rows * out * hidden / 1e9),
                unit="GOP/s" if name == "int8" else "GFLOP/s",
                runs=timing.runs,
                spread=timing.spread,
            )
        )
    return results


def gemv_results(
    buffer: NDArray[np.uint8], hardware: Hardware, seconds: float, out: int = OUT, hidden: int = HIDDEN
) -> list[Result]:
    """[1, hidden] x [out, hidden]^T in each format, as bytes of weights a second beside a plain read of the buffer."""
    with Team(hardware.cpu.usable_cpus) as team:
        read = reader(buffer, team)
        return [_gemv_result(buffer, name, read, seconds, out, hidden) for name in TOLERANCE]


def _gemv_result(buffer: NDArray[np.uint8], name: str, read: Run, seconds: float, out: int, hidden: int) -> Result:
    import torch

    x, multiply = _random(1, hidden, name), _product(name)
    words = torch.from_numpy(buffer).view(x.dtype)
    weights = words[: words.numel() // (out * hidden) * out * hidden].view(-1, out, hidden)
    turn = itertools.cycle(weights)

    def sweep(count: int) -> None:
        for weight in itertools.islice(turn, count):
            multiply(x, weight)

    case = f"gemv-{name}-{out}x{hidden}"
    product = functools.partial(multiply, x, weights[0])
    check = functools.partial(product_fault, product, x, weights[0], TOLERANCE[name])
    verify(check, case)
    count = 4 * repeats(functools.partial(sweep, 4), RUN_SECONDS)
    pairing = interleave(functools.partial(sweep, count), read, MAX_RUNS, seconds=seconds, clock=settled_clock)
    amount, read_amount = count * out * hidden * x.element_size() / 1e9, buffer.size / 1e9
    return Result(
        case=case,
        metric=f"weights read for one row, {torch.get_num_threads()} threads, {len(weights)} matrices",
        value=pairing.a.rate(amount),
        unit="GB/s",
        ceiling=pairing.b.rate(read_amount),
        share_of_ceiling=pairing.ratio(amount, read_amount),
        runs=pairing.a.runs,
        spread=pairing.a.spread,
    )


def product_fault(
    run: Callable[[], torch.Tensor], x: torch.Tensor, weight: torch.Tensor, tolerance: float
) -> str | None:
    """What is wrong with `run()` as x [M, K] times weight [N, K] transposed, against float64 over 16 of the M rows."""
    import torch

    rows = torch.randperm(x.shape[0], device=x.device)[:16]
    reference = x[rows].double() @ weight.double().T
    error = float((run()[rows].double() - reference).abs().max() / reference.abs().max())
    if error <= tolerance:
        return None
    return f"off by {error:.2g} of the largest output, rounding explains {tolerance:.2g}"


def _product(name: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    import torch

    if name == "int8":
        return lambda x, weight: torch._int_mm(x, weight.T)
    return torch.nn.functional.linear


def _random(rows: int, columns: int, name: str) -> torch.Tensor:
    """[rows, columns] in the format `name`, uniform."""
    import torch

    if name == "int8":
        return torch.randint(-127, 128, (rows, columns), dtype=torch.int8)
    return (torch.rand(rows, columns) - 0.5).to({"f32": torch.float32, "bf16": torch.bfloat16}[name])
