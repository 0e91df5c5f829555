"""The operator protocol: what replaces a stock module.

Every operator has the same five parts in the same order: a frozen `Config`, `supports`, `from_module`, `load`,
`forward`; then `lower` when it can join a step program. `docs/architecture.md` walks through one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import torch
from torch import nn

from ktitan.errors import UnsupportedError
from ktitan.formats import StoredLayout, StoredRows
from ktitan.formats.plain import plain_name
from ktitan.hardware import Hardware

__all__ = ["MemoryNeed", "ModuleWeights", "Operator", "OperatorConfig", "OperatorContext", "StreamNeed", "probing"]

# (tensor, first row, rows, entry) -> where they lie in files, as `ModuleWeights.stored_rows`.
RowFinder = Callable[[str, int, int, "int | None"], "StoredRows | None"]


def _in_no_file(name: str, first: int, count: int, entry: int | None = None) -> StoredRows | None:
    return None


@dataclass(frozen=True)
class OperatorConfig:
    """Base of operator configurations: a frozen dataclass whose fields are the kwargs that a rule may give."""


@dataclass(frozen=True)
class OperatorContext:
    """What an operator may know about its place before any weight byte is read.

    Attributes:
        path: dotted path of the module in the model.
        module: the stock module, on meta or real; never written to.
        device: where the operator computes.
        tier: where its weights live: "vram", "ram" or "nvme".
        dtype: floating dtype of the model at this place.
        formats: for each parameter or buffer of the module (names relative to it), the stored formats that make it up.
        layouts: for each matrix (or stack of matrices) whose rows are stored whole, how; operators that keep weights
            packed go by it.
        hardware: the machine.
        stored_rows: where rows lie in files, as `ModuleWeights.stored_rows`; streamed operators go by it.
    """

    path: str
    module: nn.Module
    device: torch.device
    tier: str
    dtype: torch.dtype
    hardware: Hardware
    formats: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    layouts: Mapping[str, StoredLayout] = field(default_factory=dict)
    stored_rows: RowFinder = _in_no_file


@dataclass(frozen=True)
class StreamNeed:
    """What an operator leaves in files, and the places in RAM that it is computed from.

    Attributes:
        stored_bytes: of the weights, in the files.
        expert_slots: bytes of the place of each record of which a token needs a few.
        dense_slots: those of records that every token needs.
        row_bytes: of a row of each table that is read row by row.
    """

    stored_bytes: int
    expert_slots: tuple[int, ...] = ()
    dense_slots: tuple[int, ...] = ()
    row_bytes: tuple[int, ...] = ()


@dataclass(frozen=True)
class MemoryNeed:
    """What an operator will hold once loaded: `resident_bytes` in `format`, computed by `kernel`.

    The bytes are in the operator's tier; those of one that streams (`stream` is given) are in RAM.
    """

    resident_bytes: int
    format: str
    kernel: str
    stream: StreamNeed | None = None


T = TypeVar("T")
OperatorT = TypeVar("OperatorT", bound="Operator")


class ModuleWeights(Protocol):
    """The tensors of one module, by the stock parameter and buffer names relative to it.

    Attributes:
        store: the `ktitan.tiers.store.TierStore` of the model, or None where nothing is streamed.
    """

    store: Any

    def names(self) -> list[str]:
        """The names that a source fills, in the stock module's order."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The stock shape of `name`."""

    def formats(self, name: str) -> tuple[str, ...]:
        """The stored formats of the tensors that make up `name`."""

    def stored_bytes(self, name: str) -> int:
        """Bytes that `name` takes in its source."""

    def tensor(self, name: str, dtype: torch.dtype | None = None, device: torch.device | str = "cpu") -> torch.Tensor:
        """`name` in the stock layout, dequantised, as `dtype` (default: the stock parameter's) on `device`.

        Raises:
            WeightError: no source fills `name`.
            IoError: the source could not be read.
        """

    def layout(self, name: str) -> StoredLayout | None:
        """How the rows of `name` are stored; None when they are not stored whole."""

    def read_rows(self, name: str, out: np.ndarray, first: int = 0, entry: int | None = None) -> None:
        """Fill `out`, uint8 [count, row_bytes], with stored rows of `name` from `first` on.

        Args:
            name: a tensor that has a layout.
            out: rows without gaps between them.
            first: first row, within the entry when one is given.
            entry: index along the first dimension of a stack of matrices.

        Raises:
            WeightError: the rows are not stored whole, or have another width.
            IoError: the source could not be read.
        """

    def stored_rows(self, name: str, first: int, count: int, entry: int | None = None) -> StoredRows | None:
        """Where rows of `name` lie in files; arguments as in `read_rows`.

        None when they are not in files (a live model holds them), have several formats or lie among others' rows.
        """

    def once(self, name: str, make: Callable[[], T], kind: str = "") -> T:
        """What `make` returns, or what it returned for the same stored tensor and `kind` before: tied modules and the
        operators of two phases hold one packed matrix together.
        """


class Operator(nn.Module):
    """A module that stands in for a stock one.

    Class attributes:
        operator_name: set by `register_operator`.
        Config: the frozen dataclass of its kwargs.
        keeps_children: the stock children stay below this operator under their own names, rules apply to them and they
            are loaded on their own; `load` then gets only the module's direct parameters and buffers.
        homes: tiers that its weights may live in besides that of its device ("vram" of a GPU, "ram" of the CPU).
        streams: its weights stay in files: they live in the first of `homes`, and nowhere else.
    """

    operator_name: ClassVar[str] = ""
    Config: ClassVar[type[OperatorConfig]] = OperatorConfig
    keeps_children: ClassVar[bool] = False
    homes: ClassVar[tuple[str, ...]] = ()
    streams: ClassVar[bool] = False

    @classmethod
    def supports(cls, context: OperatorContext, config: Any) -> str | None:
        """None when the operator can replace `context.module`, otherwise the reason why not, as a clause."""
        raise NotImplementedError(f"{cls.__name__} lacks supports()")

    @classmethod
    def from_module(cls: type[OperatorT], module: nn.Module, config: Any, context: OperatorContext) -> OperatorT:
        """Build the operator from the stock module's shapes and flags; no tensor data exists yet."""
        raise NotImplementedError(f"{cls.__name__} lacks from_module()")

    def load(self, weights: ModuleWeights) -> None:
        """Take the module's tensors. Called once; afterwards no parameter or buffer is on meta."""
        raise NotImplementedError(f"{type(self).__name__} lacks load()")

    def self_check(self) -> None:
        """Compare with the stock computation once all weights are loaded; most operators have nothing to compare.

        Raises:
            UnsupportedError: the stock module computes something else than this operator.
        """

    def held(self) -> tuple[Any, ...]:
        """Weights that are no tensors of the module, as objects with `nbytes`; one that is shared counts once."""
        return ()

    def lower(self, builder: Any) -> None:
        """Append this operator to a step program.

        Raises:
            UnsupportedError: the operator runs as a module only.
        """
        raise UnsupportedError(
            f"operator {self.operator_name!r} has no step-program form", remedy="run it as a module, or choose another"
        )

    @classmethod
    def memory(cls, context: OperatorContext, config: Any) -> MemoryNeed:
        """What the operator holds once loaded; the default is dense tensors in the stock dtypes."""
        own = context.module
        recurse = not cls.keeps_children
        tensors = [*own.parameters(recurse=recurse), *own.buffers(recurse=recurse)]
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        dtypes = sorted({plain_name(tensor.dtype) for tensor in tensors})
        return MemoryNeed(size, "+".join(dtypes) or "-", "torch")


@contextmanager
def probing() -> Iterator[None]:
    """Float32 on the CPU and no gradients, whatever the caller's defaults are: models are often built on meta."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.no_grad(), torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(default)
