"""Step programs as native code runs them: C structures, the check at creation, and the run (csrc/program)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from ktitan.errors import BudgetError, HardwareError, KtitanError, UnsupportedError
from ktitan.native.arguments import id_error
from ktitan.native.cpu import ARITHMETIC
from ktitan.native.library import loaded
from ktitan.native.program_structs import BufferStruct, OpStruct, ProgramStruct, StepStruct, What, what_of
from ktitan.native.store import IO_FAILED, NativeStore

__all__ = ["KINDS", "Buffer", "NativeProgram", "Operation", "Step"]

# enum kt_op_kind.
KINDS = (
    "rows",
    "stream_rows",
    "norm",
    "linear",
    "stream_linear",
    "heads",
    "rotate",
    "copy",
    "append",
    "attend",
    "activate",
    "add",
    "scale",
    "gate",
    "route",
    "experts",
    "stream_experts",
    "foresee",
    "last",
    "order",
)
_OK, _NO_MEMORY, _OUT_OF_RANGE = range(3)
_POOL_FULL = 16


@dataclass(frozen=True)
class Buffer:
    """`width` numbers a token, or a sequence; float32, or int64."""

    width: int
    is_index: bool = False
    by_sequence: bool = False

    @property
    def number_bytes(self) -> int:
        """Bytes of a number."""
        return 8 if self.is_index else 4


@dataclass(frozen=True)
class Operation:
    """A kt_op.

    Attributes:
        kind: of `KINDS`.
        inputs, outputs: numbers of buffers.
        path: the module that it stands for.
        what: the weights or settings; see `ktitan.native.program_structs.what_of`.
        bias: float32, or None.
        activations: "int8" or "float32".
        factor: of "rows" and "scale".
        numbers: n0 and so on.
    """

    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    path: str = ""
    what: Any = None
    bias: torch.Tensor | None = None
    activations: str = "float32"
    factor: float = 1.0
    numbers: tuple[int, ...] = ()


class NativeProgram:
    """A kt_program; it holds everything that it points to.

    Attributes:
        address: of it.

    Raises:
        UnsupportedError: an operation names a buffer that is not there, or one of another width than it works on.
    """

    def __init__(self, operations: Sequence[Operation], buffers: Sequence[Buffer], table_widths: Sequence[int]) -> None:
        self.operations = tuple(operations)
        self.buffers = tuple(buffers)
        self._whats = [what_of(operation.what) for operation in operations]
        self._ops = (OpStruct * max(1, len(operations)))(
            *(_op(operation, what) for operation, what in zip(operations, self._whats, strict=True))
        )
        self._buffers = (BufferStruct * max(1, len(buffers)))(
            *(BufferStruct(one.width, one.number_bytes, int(one.by_sequence)) for one in buffers)
        )
        self._widths = (ctypes.c_int64 * max(1, len(table_widths)))(*table_widths)
        self.tables = len(table_widths)
        self.struct = ProgramStruct(
            ctypes.addressof(self._ops),
            ctypes.addressof(self._buffers),
            ctypes.addressof(self._widths),
            len(operations),
            len(buffers),
            len(table_widths),
        )
        stores = {id(what.store): what.store for what in self._whats if what.store is not None}
        self.stores: tuple[NativeStore, ...] = tuple(stores.values())
        self.address = ctypes.addressof(self.struct)
        self._run = loaded().kt_program_run
        self._next = loaded().kt_program_next
        self._check()

    def open(self, stack: ExitStack) -> None:
        """Use the stores until `stack` is left.

        Raises:
            UnsupportedError: a store is closed.
        """
        for store in self.stores:
            address = stack.enter_context(store.opened())
            for what in self._whats:
                if what.store is store:
                    what.struct.store = address

    def run(self, step: Step, first: int, last: int) -> None:
        """Run operations [first, last); inside of `open`.

        Raises:
            IoError: a streamed weight cannot be read.
            UnsupportedError: a token id or expert is out of range.
            BudgetError: the KV pool is full.
            HardwareError: no memory for temporaries.
        """
        failed = step.failed
        status = self._run(self.address, step.address, first, last, ctypes.byref(failed))
        if status != _OK:
            raise self._failure(status, failed.value, step)

    def next(self, decoding: int, token: int, seen: int, uniform: float, chosen: Any) -> int:
        """kt_program_next of the kt_decoding at an address: its status, and perhaps the token that was chosen."""
        return int(self._next(decoding, token, seen, uniform, chosen))

    def _check(self) -> None:
        failed = ctypes.c_int64(-1)
        status = loaded().kt_program_check(self.address, ctypes.byref(failed))
        if status == _OK:
            return
        operation = self.operations[failed.value]
        raise UnsupportedError(
            f"operation {failed.value} of the step program ({operation.kind}) does not fit its buffers",
            operation.path,
            "report it to the author of the operator that was lowered",
        )

    def _failure(self, status: int, number: int, step: Step) -> KtitanError:
        operation, what = self.operations[number], self._whats[number]
        if what.store is not None and status == IO_FAILED:
            what.store.raise_fault()
        if operation.kind == "append" and status == _POOL_FULL:
            return BudgetError("the KV cache is full", operation.path, "give a larger budget, or a shorter context")
        if status == _NO_MEMORY:
            return HardwareError(
                "no memory for the temporaries of a CPU product", remedy="free memory, or give fewer tokens at a time"
            )
        if status == _OUT_OF_RANGE and operation.kind in ("rows", "stream_rows"):
            return id_error(step.ids, operation.what.rows)
        if status == _OUT_OF_RANGE:
            return UnsupportedError("a router chose an expert that is not there", operation.path, "check the router")
        return HardwareError(
            f"the native library refused {operation.kind} of {operation.path} (status {status})",
            remedy="reinstall ktitan; its parts differ",
        )


class Step:
    """A kt_step of one sequence, used again and again.

    Attributes:
        ids: [T] int64, of the step that was set last.
        address: of the kt_step.
        failed: where the number of a failed operation is written to.
    """

    def __init__(self, program: NativeProgram) -> None:
        self._sequence, self._tokens = ctypes.c_int64(), ctypes.c_int64()
        self._tables = (ctypes.c_void_p * max(1, program.tables))()
        self._buffers = (ctypes.c_void_p * max(1, len(program.buffers)))()
        self.struct = StepStruct(
            None,
            ctypes.addressof(self._sequence),
            ctypes.addressof(self._tokens),
            1,
            0,
            None,
            ctypes.addressof(self._tables),
            ctypes.addressof(self._buffers),
        )
        self.address = ctypes.addressof(self.struct)
        self.failed = ctypes.c_int64(-1)
        self.ids = torch.empty(0, dtype=torch.int64)

    def set(self, ids: torch.Tensor, sequence: int, pool: int) -> None:
        """The next T tokens of a sequence of the kt_pool at address `pool`."""
        self.ids = ids
        tokens = ids.shape[0]
        self._sequence.value, self._tokens.value = sequence, tokens
        self.struct.ids, self.struct.total, self.struct.pool = ids.data_ptr(), tokens, pool

    def place_table(self, number: int, address: int) -> None:
        """Where the first token's row of a table of positions is."""
        self._tables[number] = address

    def place_buffer(self, number: int, address: int) -> None:
        """Where a buffer is; it has room for the step's rows."""
        self._buffers[number] = address


def _op(operation: Operation, what: What) -> OpStruct:
    made = OpStruct(kind=KINDS.index(operation.kind), factor=operation.factor)
    made.arithmetic = ARITHMETIC[operation.activations]
    made.inputs[:] = _filled(operation.inputs, 3)
    made.outputs[:] = _filled(operation.outputs, 2)
    made.n[:] = [*operation.numbers, *[0] * (4 - len(operation.numbers))]
    made.what = what.address
    made.bias = None if operation.bias is None else operation.bias.data_ptr()
    return made


def _filled(numbers: tuple[int, ...], count: int) -> list[int]:
    return [*numbers, *[-1] * (count - len(numbers))]
