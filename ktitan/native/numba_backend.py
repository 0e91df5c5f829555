"""The backend for machines without the native library: kernels that numba compiles, and gguf's dequantisers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import numpy as np
import torch

from ktitan.errors import HardwareError
from ktitan.native.arguments import check_experts, check_linear, check_rows, id_error, index_error
from ktitan.native.bank import ExpertBank
from ktitan.native.library import checked_count, thread_count
from ktitan.native.matrix import PackedMatrix
from ktitan.native.numba_workers import Workers, cut
from ktitan.native.slow import dequantize

__all__ = ["NumbaBackend"]

# Most rows of activations, or tokens, of one pass, and about the bytes of its temporaries.
_PASS_ROWS = 256
_PASS_BYTES = 64 << 20
# Rows that `rows` dequantises at a time.
_PASS_IDS = 1024


class NumbaBackend:
    """`Backend` over numba; any number of Python threads may call it.

    F32, F16, BF16, Q4_0, Q4_1, Q8_0, Q4_K and Q6_K have kernels, with the bits of the native library. All other
    formats, and packed ones with float32 activations, are dequantised a few rows at a time and multiplied as float32.

    Raises:
        HardwareError: numba cannot be imported, or is not allowed to compile.
    """

    name = "numba"

    def __init__(self, threads: int | None = None) -> None:
        self._kernels = _import_kernels()
        self._workers = Workers(thread_count() if threads is None else threads)

    def kernel(self, format: str, activations: str) -> str:
        """The kernel that serves a format, for the plan: "numba q4_k x int8"."""
        return str(self._kernels.kernel_name(format, activations))

    def set_threads(self, count: int) -> None:
        """See `Backend.set_threads`."""
        self._workers = Workers(checked_count(count))

    def linear(
        self, x: torch.Tensor, matrix: PackedMatrix, bias: torch.Tensor | None, activations: str, out: torch.Tensor
    ) -> None:
        """out = x @ matrix.T + bias; see `Backend.linear`."""
        count = check_linear(x, matrix, bias, activations, out)
        if matrix.rows == 0:
            return
        with _compiling():
            for part in passes(count, matrix.rows + 2 * matrix.columns):
                self._linear_pass(x[part], matrix, bias, activations, out[part])

    def _linear_pass(
        self, x: torch.Tensor, matrix: PackedMatrix, bias: torch.Tensor | None, activations: str, out: torch.Tensor
    ) -> None:
        form = self._kernels.form_of(matrix.format, activations)
        rows = self._kernels.operand(as_floats(x), [form], self._workers)[form]
        direct = out.dtype == torch.float32
        result = out.detach() if direct else torch.empty(out.shape, dtype=torch.float32)
        flat, width = result.numpy().reshape(-1), matrix.rows
        pieces = cut(width, width, matrix.row_bytes * x.shape[0], self._workers.count)

        def task(item: int) -> None:
            first, last = pieces[item]
            self._kernels.multiply(matrix, first, last, rows, flat[first:], width)

        self._workers.run(task, len(pieces))
        if bias is not None:
            result += bias
        if not direct:
            out.copy_(result)

    def experts(
        self,
        hidden: torch.Tensor,
        index: torch.Tensor,
        weights: torch.Tensor,
        bank: ExpertBank,
        activations: str,
        out: torch.Tensor,
    ) -> None:
        """out[t] = sum over k of weights[t, k] * expert_{index[t, k]}(hidden[t]); see `Backend.experts`."""
        tokens, slots = check_experts(hidden, index, weights, bank, activations, out)
        if index.numel() and (int(index.min()) < 0 or int(index.max()) > bank.experts):
            raise index_error(index, bank.experts)
        with _compiling():
            from ktitan.native.numba_experts import ExpertsPass

            for part in passes(tokens, slots * 3 * (bank.hidden + bank.intermediate)):
                step = ExpertsPass(bank, activations, index[part].numpy(), self._workers)
                out[part].copy_(torch.from_numpy(step.run(as_floats(hidden[part]), weights[part].detach().numpy())))

    def rows(self, matrix: PackedMatrix, ids: torch.Tensor, out: torch.Tensor) -> None:
        """out[t] = row ids[t] of the matrix, dequantised; see `Backend.rows`."""
        count = check_rows(matrix, ids, out)
        if count and (int(ids.min()) < 0 or int(ids.max()) >= matrix.rows):
            raise id_error(ids, matrix.rows)
        for first in range(0, count, _PASS_IDS):
            part = slice(first, first + _PASS_IDS)
            out.detach().numpy()[part] = dequantize(matrix.format, matrix.data[ids[part].numpy()])


def passes(rows: int, numbers: int) -> Iterator[slice]:
    """Slices of `rows` rows or tokens, each of which needs about `numbers` float32 of temporaries."""
    step = max(16, min(_PASS_ROWS, _PASS_BYTES // (4 * max(numbers, 1))))
    return (slice(first, min(first + step, rows)) for first in range(0, rows, step))


def as_floats(x: torch.Tensor) -> np.ndarray:
    """A contiguous tensor of floats as a float32 array; exact."""
    return x.detach().float().numpy()


def _import_kernels() -> ModuleType:
    """The kernels; numba takes half a second to import, so only a backend that is made pays for it."""
    try:
        from ktitan.native import numba_jit, numba_operands
    except (ImportError, OSError) as error:
        raise HardwareError(
            f"no CPU kernels: there is no native library, and numba cannot be imported ({error})",
            remedy="install numba for this Python, or reinstall ktitan with a C++ compiler at hand",
        ) from error
    if numba_jit.switched_off():
        raise HardwareError(
            "no CPU kernels: there is no native library, and numba's compiler is switched off",
            "NUMBA_DISABLE_JIT",
            "unset the variable, or reinstall ktitan with a C++ compiler at hand",
        )
    return numba_operands


@contextmanager
def _compiling() -> Iterator[None]:
    """Turn numba's failure to compile into an error of ours."""
    from numba.core.errors import NumbaError

    try:
        yield
    except NumbaError as error:
        raise HardwareError(
            f"numba cannot compile the CPU kernels for this machine: {error}",
            remedy="install another version of numba, or reinstall ktitan with a C++ compiler at hand",
        ) from error
