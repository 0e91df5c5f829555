"""Products with weights that come from a store: what streamed operators call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ktitan.errors import HardwareError, UnsupportedError
from ktitan.native.arguments import FLOAT_DTYPES, check_experts, check_linear, check_rows, id_error, index_error
from ktitan.native.bank import ACTIVATIONS
from ktitan.native.calls import is_recorded, refuse_gradient
from ktitan.native.cpu import ARITHMETIC, MatrixStruct
from ktitan.native.library import loaded
from ktitan.native.matrix import GGML_TYPES
from ktitan.native.predict import Predictor
from ktitan.native.shapes import ExpertShape, MatrixShape
from ktitan.native.store import EXTENT, IO_FAILED, NativeStore
from ktitan.native.torch_ops import handle_of

__all__ = [
    "StreamBank",
    "StreamMatrix",
    "StreamTable",
    "stream_experts",
    "stream_linear",
    "stream_rows",
]

_OK, _NO_MEMORY, _OUT_OF_RANGE = range(3)


class _BankStruct(ctypes.Structure):
    """kt_stream_bank of csrc/tiers/ktitan_tiers.h."""

    _fields_ = (
        ("store", ctypes.c_void_p),
        ("places", ctypes.c_void_p),
        ("gate", MatrixStruct),
        ("up", MatrixStruct),
        ("down", MatrixStruct),
        ("gate_bias", ctypes.c_void_p),
        ("up_bias", ctypes.c_void_p),
        ("down_bias", ctypes.c_void_p),
        ("next", ctypes.c_void_p),
        ("first_record", ctypes.c_int64),
        ("experts", ctypes.c_int64),
        ("hidden", ctypes.c_int64),
        ("intermediate", ctypes.c_int64),
        ("activation", ctypes.c_int32),
    )


class _Streamed:
    """Base of what lies in a store: copies of a model share it, and it cannot be pickled (`NativeStore`)."""

    store: NativeStore

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self


class StreamBank(_Streamed):
    """The experts of a layer: expert e is record `first_record` + e.

    Args:
        store: where the records are.
        first_record: of expert 0.
        places: of each expert, where (gate, up, down) begin in its slot; gate's is ignored where there is none.
        shape: sizes and biases.
    """

    def __init__(
        self, store: NativeStore, first_record: int, places: Sequence[tuple[int, int, int]], shape: ExpertShape
    ) -> None:
        self.store = store
        self.shape = shape
        self.experts = shape.experts
        self.hidden = shape.up.columns
        self.intermediate = shape.down.columns
        self._places = np.array(places, np.int64)
        self._biases = (shape.gate_bias, shape.up_bias, shape.down_bias)
        self.first_record = first_record
        self.next: Predictor | None = None
        self.struct = _BankStruct(
            None,
            self._places.ctypes.data,
            MatrixStruct() if shape.gate is None else _matrix(shape.gate),
            _matrix(shape.up),
            _matrix(shape.down),
            *(None if bias is None else bias.data_ptr() for bias in self._biases),
            None,
            first_record,
            shape.experts,
            self.hidden,
            self.intermediate,
            ACTIVATIONS.index(shape.activation),
        )

    def foresee(self, predictor: Predictor) -> None:
        """Let each call of few tokens guess what the layer of `predictor` will choose, from its own input."""
        self.next = predictor
        self.struct.next = predictor.address

    @property
    def nbytes(self) -> int:
        """Bytes that are resident whatever the store holds: the biases."""
        return sum(bias.nbytes for bias in self._biases if bias is not None)


class StreamMatrix(_Streamed):
    """The weight of a dense layer: bytes of `record` from `place` on."""

    nbytes = 0

    def __init__(self, store: NativeStore, record: int, place: int, shape: MatrixShape) -> None:
        self.store = store
        self.record = record
        self.place = place
        self.shape = shape
        self.rows = shape.rows
        self.columns = shape.columns
        self.struct = _matrix(shape)


class StreamTable(_Streamed):
    """A table read row by row; `extents` are (file number, offset, bytes, position in the table)."""

    nbytes = 0

    def __init__(self, store: NativeStore, shape: MatrixShape) -> None:
        self.store = store
        self.shape = shape
        self.rows = shape.rows
        self.columns = shape.columns
        self.struct = _matrix(shape)
        self.extents = np.zeros(0, EXTENT)

    def place(self, extents: Sequence[tuple[int, int, int, int]]) -> None:
        """Say where the rows are, once files have numbers."""
        self.extents = np.array([(offset, size, at, file) for file, offset, size, at in extents], EXTENT)


def stream_experts(
    hidden: torch.Tensor, index: torch.Tensor, weights: torch.Tensor, bank: StreamBank, activations: str
) -> torch.Tensor:
    """`ktitan.native.experts` with experts of a store: the same bits.

    Raises:
        IoError: a record cannot be read; the store stays usable.
        UnsupportedError: as `experts`, or the store is closed.
    """
    if is_recorded():
        return torch.ops.ktitan.experts_cpu(hidden, index, weights, handle_of(bank), activations)
    refuse_gradient(hidden)
    refuse_gradient(weights)
    out = torch.empty_like(hidden, memory_format=torch.contiguous_format)
    rows = hidden.resolve_neg().contiguous()
    index = index.contiguous()
    shares = weights.detach().to(torch.float32).resolve_neg().contiguous()
    tokens, slots = check_experts(rows, index, shares, bank, activations, out)
    with bank.store.opened() as address:
        bank.struct.store = address
        status = loaded().kt_stream_experts(
            ctypes.addressof(bank.struct),
            rows.data_ptr(),
            FLOAT_DTYPES[rows.dtype],
            tokens,
            index.data_ptr(),
            slots,
            shares.data_ptr(),
            ARITHMETIC[activations],
            out.data_ptr(),
        )
        if status == _OUT_OF_RANGE:
            raise index_error(index, bank.experts)
        _check(status, bank.store)
    return out


def stream_linear(x: torch.Tensor, matrix: StreamMatrix, bias: torch.Tensor | None, activations: str) -> torch.Tensor:
    """`ktitan.native.linear` with a weight of a store: the same bits. Raises as `stream_experts`."""
    if is_recorded():
        return torch.ops.ktitan.linear_cpu(x, handle_of(matrix), bias, activations)
    refuse_gradient(x)
    if not x.dim():
        raise UnsupportedError("x has no dimensions", "x", f"give a tensor [..., {matrix.columns}]")
    rows = x.reshape(-1, x.shape[-1]).resolve_neg().contiguous()
    out = torch.empty((rows.shape[0], matrix.rows), dtype=x.dtype, device=x.device)
    count = check_linear(rows, matrix, bias, activations, out)
    with matrix.store.opened() as address:
        status = loaded().kt_stream_linear(
            address,
            matrix.record,
            matrix.place,
            ctypes.addressof(matrix.struct),
            rows.data_ptr(),
            FLOAT_DTYPES[rows.dtype],
            count,
            None if bias is None else bias.data_ptr(),
            ARITHMETIC[activations],
            out.data_ptr(),
        )
        _check(status, matrix.store)
    return out.view(*x.shape[:-1], matrix.rows)


def stream_rows(ids: torch.Tensor, table: StreamTable, dtype: torch.dtype) -> torch.Tensor:
    """`ktitan.native.embedding` with a table of a store: the same bits. Raises as `stream_experts`."""
    if is_recorded():
        return torch.ops.ktitan.embedding_cpu(ids, handle_of(table)).to(dtype)
    if ids.is_floating_point() or ids.dtype is torch.bool:
        raise UnsupportedError(f"ids are {ids.dtype}", "ids", "give whole numbers, such as int64")
    flat = ids.reshape(-1).to(torch.int64).contiguous()
    out = torch.empty((flat.shape[0], table.columns), dtype=torch.float32, device=flat.device)
    count = check_rows(table, flat, out)
    with table.store.opened() as address:
        status = loaded().kt_stream_rows(
            address,
            table.extents.ctypes.data,
            len(table.extents),
            ctypes.addressof(table.struct),
            flat.data_ptr(),
            count,
            out.data_ptr(),
        )
        if status == _OUT_OF_RANGE:
            raise id_error(flat, table.rows)
        _check(status, table.store)
    return out.to(dtype).view(*ids.shape, table.columns)


def _matrix(shape: MatrixShape) -> MatrixStruct:
    return MatrixStruct(None, shape.rows, shape.columns, shape.row_bytes, GGML_TYPES[shape.format])


def _check(status: int, store: NativeStore) -> None:
    if status == _OK:
        return
    if status == IO_FAILED:
        store.raise_fault()
    if status == _NO_MEMORY:
        raise HardwareError(
            "no memory for the temporaries of a CPU product", remedy="free memory, or give fewer tokens at a time"
        )
    raise HardwareError(
        f"the native library refused a streamed product (status {status})", remedy="reinstall ktitan; its parts differ"
    )
