"""The choice of a token in native code (csrc/program/choose.cpp)."""

from __future__ import annotations

import ctypes

import numpy as np

from ktitan.native.library import loaded

__all__ = ["NativeChoice"]

_OK = 0


class _ChoiceStruct(ctypes.Structure):
    """kt_choice."""

    _fields_ = (("temperature", ctypes.c_float), ("top_k", ctypes.c_int64), ("top_p", ctypes.c_double))


class NativeChoice:
    """The likeliest token, or a draw by temperature, then top-k, then top-p, as transformers' warpers cut.

    Args:
        temperature: > 0.
        top_k: >= 1; 0: always the likeliest token.
        top_p: in (0, 1]; 1: off.

    Attributes:
        address: of the kt_choice.

    Raises:
        HardwareError: there is no native library.
    """

    def __init__(self, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> None:
        self._struct = _ChoiceStruct(temperature, min(top_k, 2**62), top_p)
        self._choose = loaded().kt_choose
        self.address = ctypes.addressof(self._struct)

    def choose(self, logits: np.ndarray, uniform: float) -> int | None:
        """The token of float32 [V] whose part of the cumulative probabilities holds `uniform` [0, 1).

        None where this cannot say it for certain, or where a logit is NaN: the plain way must.
        """
        row, token = np.ascontiguousarray(logits), ctypes.c_int64()
        status = self._choose(self.address, row.ctypes.data, row.shape[0], uniform, ctypes.byref(token))
        return token.value if status == _OK else None
