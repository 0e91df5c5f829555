"""The GPU cases, on a CUDA device only."""

from __future__ import annotations

import pytest
import torch

from ktitan.bench.gpu import gpu_results
from ktitan.hardware import detect_gpus

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_all_cases():
    gpu = detect_gpus()[0]
    results = gpu_results(gpu, 0.05)
    sizes = ("256MiB", "4MiB", "1MiB", "256KiB")
    assert [result.case for result in results] == [
        "gpu0-copy",
        *(f"gpu0-{way}-{size}" for way in ("h2d", "d2h") for size in sizes),
        "gpu0-gemm-bf16-8192",
    ]
    assert all(result.value > 0 for result in results)
    pieces = [result for result in results if result.case.endswith(sizes[1:])]
    assert all(result.ceiling > 0 and result.share_of_ceiling > 0 for result in pieces)
