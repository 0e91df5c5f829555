"""The C structures of csrc/program/ktitan_program.h that programs are made of, and what their operations point to."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch

from ktitan.errors import UnsupportedError
from ktitan.native.attention import Attention, Rotation
from ktitan.native.bank import ACTIVATIONS, ExpertBank
from ktitan.native.cpu import BankStruct, MatrixStruct
from ktitan.native.matrix import PackedMatrix
from ktitan.native.norms import norm_struct
from ktitan.native.predict import Predictor
from ktitan.native.routing import Router
from ktitan.native.store import NativeStore
from ktitan.native.streams import StreamBank, StreamMatrix, StreamTable

__all__ = ["BufferStruct", "Foreseen", "Norm", "OpStruct", "ProgramStruct", "StepStruct", "What", "what_of"]


class OpStruct(ctypes.Structure):
    """kt_op."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("inputs", ctypes.c_int32 * 3),
        ("outputs", ctypes.c_int32 * 2),
        ("arithmetic", ctypes.c_int32),
        ("factor", ctypes.c_float),
        ("n", ctypes.c_int64 * 4),
        ("what", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
    )


class BufferStruct(ctypes.Structure):
    """kt_buffer."""

    _fields_ = (("width", ctypes.c_int64), ("bytes", ctypes.c_int32), ("by_sequence", ctypes.c_int32))


class ProgramStruct(ctypes.Structure):
    """kt_program."""

    _fields_ = (
        ("ops", ctypes.c_void_p),
        ("buffers", ctypes.c_void_p),
        ("table_widths", ctypes.c_void_p),
        ("op_count", ctypes.c_int64),
        ("buffer_count", ctypes.c_int64),
        ("table_count", ctypes.c_int64),
    )


class StepStruct(ctypes.Structure):
    """kt_step."""

    _fields_ = (
        ("ids", ctypes.c_void_p),
        ("sequences", ctypes.c_void_p),
        ("tokens", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("total", ctypes.c_int64),
        ("pool", ctypes.c_void_p),
        ("tables", ctypes.c_void_p),
        ("buffers", ctypes.c_void_p),
    )


class _DenseStruct(ctypes.Structure):
    """kt_stream_dense."""

    _fields_ = (
        ("store", ctypes.c_void_p),
        ("record", ctypes.c_int64),
        ("place", ctypes.c_int64),
        ("shape", MatrixStruct),
    )


class _TableStruct(ctypes.Structure):
    """kt_stream_table."""

    _fields_ = (
        ("store", ctypes.c_void_p),
        ("extents", ctypes.c_void_p),
        ("extent_count", ctypes.c_int64),
        ("shape", MatrixStruct),
    )


class _ForeseeStruct(ctypes.Structure):
    """kt_foresee."""

    _fields_ = (("store", ctypes.c_void_p), ("predictor", ctypes.c_void_p))


@dataclass(frozen=True)
class Norm:
    """An RMS norm of groups of `width` numbers; weight float32 [width], or None."""

    weight: torch.Tensor | None
    width: int
    eps: float
    unit_offset: bool


@dataclass(frozen=True)
class Foreseen:
    """What a store looks ahead with."""

    store: NativeStore
    predictor: Predictor


@dataclass(frozen=True)
class What:
    """What an operation points to.

    Attributes:
        address: of it; None: nothing.
        struct: that lies there; its field `store` is set for the length of a run.
        held: what must live as long.
        store: that is used, or None.
    """

    address: int | None = None
    struct: Any = None
    held: Any = None
    store: NativeStore | None = None


@singledispatch
def what_of(what: Any) -> What:
    """The C form of weights or settings.

    Raises:
        UnsupportedError: it has none.
    """
    raise UnsupportedError(f"a step program cannot hold a {type(what).__name__}", remedy="run the operator as a module")


def _over(struct: ctypes.Structure, held: Any, store: NativeStore | None = None) -> What:
    return What(ctypes.addressof(struct), struct, held, store)


@what_of.register
def _(what: None) -> What:
    return What()


@what_of.register
def _(what: PackedMatrix) -> What:
    return _over(_matrix(what), what)


@what_of.register
def _(what: ExpertBank) -> What:
    matrices = [None if one is None else _matrix(one) for one in (what.gate, what.up, what.down)]
    struct = BankStruct(
        *(None if one is None else ctypes.addressof(one) for one in matrices),
        *(None if one is None else one.data_ptr() for one in (what.gate_bias, what.up_bias, what.down_bias)),
        what.experts,
        what.hidden,
        what.intermediate,
        ACTIVATIONS.index(what.activation),
    )
    return _over(struct, (what, matrices))


@what_of.register
def _(what: StreamMatrix) -> What:
    return _over(_DenseStruct(None, what.record, what.place, what.struct), what, what.store)


@what_of.register
def _(what: StreamTable) -> What:
    extents = what.extents
    struct = _TableStruct(None, extents.ctypes.data, len(extents), what.struct)
    return _over(struct, (what, extents), what.store)


@what_of.register
def _(what: StreamBank) -> What:
    return _over(what.struct, what, what.store)


@what_of.register
def _(what: Foreseen) -> What:
    return _over(_ForeseeStruct(None, what.predictor.address), what, what.store)


@what_of.register
def _(what: Norm) -> What:
    weight = None if what.weight is None else what.weight.detach()
    return _over(norm_struct(weight, what.width, what.eps, what.unit_offset), what)


@what_of.register
def _(what: torch.Tensor) -> What:
    return What(what.data_ptr(), None, what)


def _native(what: Any) -> What:
    """Of a class that knows its own structure."""
    return _over(what.struct, what)


for _kind in (Attention, Rotation, Router):
    what_of.register(_kind, _native)


def _matrix(matrix: PackedMatrix) -> MatrixStruct:
    return MatrixStruct(matrix.address, matrix.rows, matrix.columns, matrix.row_bytes, matrix.ggml_type)
