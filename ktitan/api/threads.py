"""How many threads compute on the CPU: PyTorch's and those of the CPU kernels together."""

from __future__ import annotations

import torch

from ktitan.native import backend, default_threads

__all__ = ["set_threads"]


def set_threads(count: int | None = None) -> int:
    """Let PyTorch and the CPU kernels use `count` threads from the next call on; returns the number.

    Args:
        count: None takes KTITAN_THREADS, else one for each CPU that this process may use.

    Raises:
        UnsupportedError: not between 1 and 1024.
    """
    chosen = default_threads() if count is None else count
    backend().set_threads(chosen)
    torch.set_num_threads(chosen)
    return chosen
