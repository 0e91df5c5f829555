"""What computes with packed matrices on the CPU: the native library, or numba where there is none.

Both follow the arithmetic contract of csrc/cpu/README.md, so their results have the same bits; numba's slow path
(formats without a kernel there) dequantises and leaves activations as they are.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Protocol

import torch

from ktitan import env
from ktitan.native import library
from ktitan.native.bank import ExpertBank
from ktitan.native.cpu import CpuBackend
from ktitan.native.matrix import PackedMatrix

__all__ = ["Backend", "backend", "native_reason"]

logger = logging.getLogger("ktitan.native")


class Backend(Protocol):
    """Products with packed matrices. Every method checks its arguments and raises `UnsupportedError` for wrong ones.

    Shape letters: M rows of activations, K columns, N out, T tokens, H hidden; tensors are on the CPU and contiguous.
    `activations` is "int8" (quantised per row and block) or "float32"; matrices of plain floats always use float32.

    Attributes:
        name: "avx512", "avx2", "generic" or "numba".
    """

    @property
    def name(self) -> str:
        """The instruction set, or "numba"."""

    def kernel(self, format: str, activations: str) -> str:
        """The kernel that serves a format, for the plan: "avx512 q4_k x int8"."""

    def linear(
        self, x: torch.Tensor, matrix: PackedMatrix, bias: torch.Tensor | None, activations: str, out: torch.Tensor
    ) -> None:
        """out = x @ matrix.T + bias.

        Args:
            x: [M, K] float32, bfloat16 or float16.
            matrix: [N, K].
            bias: float32 [N] or None.
            activations: "int8" or "float32".
            out: [M, N] in x's dtype; rounded once, after the bias.
        """

    def experts(
        self,
        hidden: torch.Tensor,
        index: torch.Tensor,
        weights: torch.Tensor,
        bank: ExpertBank,
        activations: str,
        out: torch.Tensor,
    ) -> None:
        """out[t] = sum over k of weights[t, k] * expert_{index[t, k]}(hidden[t]), k ascending, in float32.

        Args:
            hidden: [T, H] float32, bfloat16 or float16.
            index: [T, K] int64 in 0..E; E leaves the pair out.
            weights: [T, K] float32.
            bank: the experts.
            activations: "int8" or "float32", for the inner vector too.
            out: [T, H] in hidden's dtype; rounded once.

        Raises:
            UnsupportedError: an index is out of range; nothing was computed.
        """

    def set_threads(self, count: int) -> None:
        """Use `count` threads from the next call on, the caller's included.

        Raises:
            UnsupportedError: `count` is not between 1 and 1024.
        """

    def rows(self, matrix: PackedMatrix, ids: torch.Tensor, out: torch.Tensor) -> None:
        """out[t] = row ids[t] of the matrix, dequantised.

        Args:
            matrix: [N, K].
            ids: [T] int64 in 0..N-1.
            out: [T, K] float32.

        Raises:
            UnsupportedError: an id is out of range; nothing was written.
        """


@lru_cache(maxsize=1)
def backend() -> Backend:
    """The native library where it loads, otherwise numba; decided at the first call."""
    reason = native_reason()
    if not env.openmp_rests():
        logger.warning(
            "torch was loaded before ktitan, so its idle threads spin on the CPU kernels' cores, which can halve the "
            "speed: import ktitan first, or set OMP_WAIT_POLICY=PASSIVE"
        )
    if reason is None:
        return CpuBackend(library.loaded())
    # numba takes seconds to import, and only a machine without the library needs it.
    from ktitan.native.numba_backend import NumbaBackend

    logger.warning("CPU kernels come from numba and are slower: the native library is %s", reason)
    return NumbaBackend()


def native_reason() -> str | None:
    """Why the native library is not used ("not built: no C++ compiler"), or None when it is."""
    return library.state().reason
