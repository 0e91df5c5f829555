"""The backend of the native library: one call of it for each product."""

from __future__ import annotations

import ctypes
from weakref import WeakKeyDictionary

import torch

from ktitan.errors import HardwareError, KtitanError
from ktitan.native.arguments import FLOAT_DTYPES, check_experts, check_linear, check_rows, id_error, index_error
from ktitan.native.bank import ACTIVATIONS, ExpertBank
from ktitan.native.library import ISAS, set_threads
from ktitan.native.matrix import FLOAT_FORMATS, PackedMatrix

__all__ = ["ARITHMETIC", "BankStruct", "CpuBackend", "MatrixStruct"]

# enum kt_status and enum kt_arithmetic of csrc/cpu/ktitan_cpu.h.
_OK, _NO_MEMORY, _OUT_OF_RANGE = range(3)
ARITHMETIC = {"int8": 0, "float32": 1}


class MatrixStruct(ctypes.Structure):
    """kt_matrix of csrc/cpu/ktitan_cpu.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("row_bytes", ctypes.c_int64),
        ("type", ctypes.c_int32),
    )


class BankStruct(ctypes.Structure):
    """kt_bank of csrc/cpu/ktitan_cpu.h."""

    _fields_ = (
        ("gate", ctypes.c_void_p),
        ("up", ctypes.c_void_p),
        ("down", ctypes.c_void_p),
        ("gate_bias", ctypes.c_void_p),
        ("up_bias", ctypes.c_void_p),
        ("down_bias", ctypes.c_void_p),
        ("experts", ctypes.c_int64),
        ("hidden", ctypes.c_int64),
        ("intermediate", ctypes.c_int64),
        ("activation", ctypes.c_int32),
    )


class CpuBackend:
    """`Backend` over the native library; any number of Python threads may call it, one call runs at a time."""

    def __init__(self, handle: ctypes.CDLL) -> None:
        self._library = handle
        # What the library reads about a matrix or bank; made once, and gone with it.
        self._matrices: WeakKeyDictionary[PackedMatrix, MatrixStruct] = WeakKeyDictionary()
        self._banks: WeakKeyDictionary[ExpertBank, BankStruct] = WeakKeyDictionary()

    @property
    def name(self) -> str:
        """The instruction set that computes now."""
        return ISAS[self._library.kt_isa()]

    def kernel(self, format: str, activations: str) -> str:
        """The kernel that serves a format, for the plan: "avx512 q4_k x int8"."""
        return f"{self.name} {format} x {'float32' if format in FLOAT_FORMATS else activations}"

    def set_threads(self, count: int) -> None:
        """See `Backend.set_threads`."""
        set_threads(count)

    def linear(
        self, x: torch.Tensor, matrix: PackedMatrix, bias: torch.Tensor | None, activations: str, out: torch.Tensor
    ) -> None:
        """out = x @ matrix.T + bias; see `Backend.linear`."""
        rows = check_linear(x, matrix, bias, activations, out)
        status = self._library.kt_linear(
            ctypes.addressof(self._matrix(matrix)),
            x.data_ptr(),
            FLOAT_DTYPES[x.dtype],
            rows,
            None if bias is None else bias.data_ptr(),
            ARITHMETIC[activations],
            out.data_ptr(),
        )
        if status != _OK:
            raise _failure(status)

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
        status = self._library.kt_experts(
            ctypes.addressof(self._bank(bank)),
            hidden.data_ptr(),
            FLOAT_DTYPES[hidden.dtype],
            tokens,
            index.data_ptr(),
            slots,
            weights.data_ptr(),
            ARITHMETIC[activations],
            out.data_ptr(),
        )
        if status != _OK:
            raise index_error(index, bank.experts) if status == _OUT_OF_RANGE else _failure(status)

    def rows(self, matrix: PackedMatrix, ids: torch.Tensor, out: torch.Tensor) -> None:
        """out[t] = row ids[t] of the matrix, dequantised; see `Backend.rows`."""
        count = check_rows(matrix, ids, out)
        status = self._library.kt_rows(ctypes.addressof(self._matrix(matrix)), ids.data_ptr(), count, out.data_ptr())
        if status != _OK:
            raise id_error(ids, matrix.rows) if status == _OUT_OF_RANGE else _failure(status)

    def _matrix(self, matrix: PackedMatrix) -> MatrixStruct:
        known = self._matrices.get(matrix)
        if known is None:
            known = MatrixStruct(matrix.address, matrix.rows, matrix.columns, matrix.row_bytes, matrix.ggml_type)
            # Two threads may get here at once; both must use the one that stays.
            known = self._matrices.setdefault(matrix, known)
        return known

    def _bank(self, bank: ExpertBank) -> BankStruct:
        known = self._banks.get(bank)
        if known is None:
            known = BankStruct(
                None if bank.gate is None else ctypes.addressof(self._matrix(bank.gate)),
                ctypes.addressof(self._matrix(bank.up)),
                ctypes.addressof(self._matrix(bank.down)),
                *(None if b is None else b.data_ptr() for b in (bank.gate_bias, bank.up_bias, bank.down_bias)),
                bank.experts,
                bank.hidden,
                bank.intermediate,
                ACTIVATIONS.index(bank.activation),
            )
            known = self._banks.setdefault(bank, known)
        return known


def _failure(status: int) -> KtitanError:
    if status == _NO_MEMORY:
        return HardwareError(
            "no memory for the temporaries of a CPU product", remedy="free memory, or give fewer tokens at a time"
        )
    return HardwareError(
        f"the native CPU library refused a call (status {status})", remedy="reinstall ktitan; its parts do not match"
    )
