"""`ktitan bench hw`: the ceilings of this machine, to which every other figure is compared."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from ktitan.bench.drive import drive_results
from ktitan.bench.gemm import gemm_results, gemv_results
from ktitan.bench.gpu import gpu_results
from ktitan.bench.memory import aligned_buffer, buffer_bytes, fill, memory_results
from ktitan.bench.result import Result
from ktitan.bench.team import Team
from ktitan.errors import HardwareError
from ktitan.hardware import Gpu, Hardware, detect

__all__ = ["run"]

logger = logging.getLogger("ktitan.bench.hw")

Progress = Callable[[str], None]


def run(
    path: str | Path | None = None,
    seconds: float = 1.0,
    *,
    hardware: Hardware | None = None,
    gpu: int | None = None,
    progress: Progress = logger.info,
) -> list[Result]:
    """Measure processor, drive and GPU. What is itself a ceiling (reads, copies, GEMM) carries none.

    Args:
        path: file or directory whose drive is read; None leaves the drive out.
        seconds: time for each case; eight on the CPU, three on the drive, six on the GPU.
        hardware: the machine, when it has been detected already.
        gpu: index of the CUDA device; None takes the first, if there is one.
        progress: told what is measured next.

    Raises:
        HardwareError: there is no CUDA device `gpu`.
        IoError: `path` cannot be read, or no temporary file can be written there.
        UnsupportedError: something computed or read a wrong result, which is then not timed.
    """
    hardware = hardware or detect()
    device = _device(hardware, gpu)
    results = _cpu_results(hardware, seconds, progress)
    if path is not None:
        progress(f"drive at {path}")
        results += drive_results(path, seconds)
    if device is not None:
        progress(f"GPU {device.index}: {device.name}")
        results += gpu_results(device, seconds)
    return results


def _device(hardware: Hardware, index: int | None) -> Gpu | None:
    if index is None:
        return hardware.gpus[0] if hardware.gpus else None
    for gpu in hardware.gpus:
        if gpu.index == index:
            return gpu
    known = ", ".join(f"{gpu.index} ({gpu.name})" for gpu in hardware.gpus) or "none"
    raise HardwareError(f"no CUDA device {index}", remedy=f"devices here: {known}")


def _cpu_results(hardware: Hardware, seconds: float, progress: Progress) -> list[Result]:
    """Memory and matrix products with torch at the usable CPUs; its thread count is put back afterwards."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(hardware.cpu.usable_cpus)
    try:
        progress("memory read")
        buffer = aligned_buffer(buffer_bytes(hardware))
        with Team(hardware.cpu.usable_cpus) as team:
            fill(buffer, team)
        results = memory_results(buffer, hardware, seconds)
        progress("matrix products")
        return results + gemm_results(seconds) + gemv_results(buffer, hardware, seconds)
    finally:
        torch.set_num_threads(before)
