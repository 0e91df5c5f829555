"""What the CPU operators share: reading stored rows into packed matrices, and when they cannot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn

from ktitan.errors import UnsupportedError
from ktitan.formats import StoredLayout, find_format
from ktitan.native import PackedMatrix, backend, format_reason
from ktitan.operator import MemoryNeed, ModuleWeights, OperatorContext

__all__ = ["PackedState", "exact_activations", "layout_reason", "packed_need", "read_matrix", "rows_reason"]


_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class _Kwargs(Protocol):
    """The kwargs that all CPU operators have."""

    @property
    def activations(self) -> str: ...

    @property
    def only_packed(self) -> bool: ...


def layout_reason(context: OperatorContext, config: _Kwargs, names: Sequence[str]) -> str | None:
    """Why the named tensors cannot stay as they are stored and be multiplied on the CPU, or None."""
    if context.device.type != "cpu":
        return f"it computes on the CPU, the module is on {context.device}"
    if context.dtype not in _DTYPES:
        return f"it computes in float32, bfloat16 or float16, the model in {str(context.dtype).removeprefix('torch.')}"
    for name in names:
        layout = context.layouts.get(name)
        if layout is None and name not in context.formats:
            return f"how its {name} is stored is not known without weights"
        if layout is None:
            return f"the rows of its {name} are not stored whole"
        if config.only_packed and all(_is_plain(one) for one in layout.formats):
            return f"its {name} is stored as plain {'+'.join(layout.formats)}"
    return None


def rows_reason(layout: StoredLayout, name: str, first: int, count: int) -> str | None:
    """Why these rows cannot be one packed matrix, or None."""
    stored = layout.format_of(first, count)
    if stored is None:
        return f"the rows of its {name} are stored in several formats ({', '.join(layout.formats)})"
    return format_reason(stored)


def packed_need(context: OperatorContext, config: _Kwargs, names: Sequence[str]) -> MemoryNeed:
    """What the named tensors take as they are stored, and what multiplies them."""
    layouts = [context.layouts[name] for name in names]
    formats = list(dict.fromkeys(name for layout in layouts for name in layout.formats))
    kernels = dict.fromkeys(backend().kernel(name, config.activations) for name in formats)
    return MemoryNeed(sum(layout.stored_bytes for layout in layouts), "+".join(formats), ", ".join(kernels))


def read_matrix(weights: ModuleWeights, name: str, first: int, count: int, entries: int | None = None) -> PackedMatrix:
    """Rows `first` to `first + count` of `name`, of each of `entries` matrices one after another.

    Raises:
        UnsupportedError: the rows are stored in several formats, or not whole.
        WeightError, IoError: they could not be read.
    """
    layout = weights.layout(name)
    stored = None if layout is None else layout.format_of(first, count)
    if layout is None or stored is None:
        raise UnsupportedError(f"the rows of {name} cannot stay as they are stored", name, "use the dense operator")
    matrix = PackedMatrix(stored, count * (entries or 1), layout.columns)
    for entry in range(entries or 1):
        part = matrix.data[entry * count : (entry + 1) * count]
        weights.read_rows(name, part, first, None if entries is None else entry)
    return matrix


def _is_plain(name: str) -> bool:
    return find_format(name, "layout").torch_dtype is not None


class PackedState(nn.Module):
    """Base of the operators with packed weights; refuses to write or read a checkpoint without them.

    Attributes:
        activations: "int8" or "float32".
    """

    activations: str

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Moves and casts of a whole model: weights stay packed and on the CPU; what would break that is refused.

        Raises:
            UnsupportedError: to another device, or to a dtype that the kernels do not read.
        """
        probe = fn(torch.empty(0))
        if probe.device.type != "cpu" or probe.dtype not in _DTYPES:
            raise UnsupportedError(
                f"its packed weights cannot go to {probe.device} as {str(probe.dtype).removeprefix('torch.')}",
                getattr(self, "path", ""),
                "place modules by rules, and choose the dtype when the model is loaded",
            )
        self.cast(probe.dtype)
        return self  # biases stay in float32, as sums are

    def cast(self, dtype: torch.dtype) -> None:
        """Take the dtype of a cast model; outputs follow inputs, so most operators have nothing to change."""

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        raise UnsupportedError(
            "its weights are packed and cannot be written as tensors",
            prefix.rstrip("."),
            "call model.ktitan.undo() first",
        )

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        raise UnsupportedError(
            "its weights are packed and cannot be read from tensors",
            prefix.rstrip("."),
            "call model.ktitan.undo() first",
        )


@contextmanager
def exact_activations(module: nn.Module) -> Iterator[None]:
    """Float32 activations for all packed operators below `module`: one rounded number more or less would hide or fake
    a difference when two ways to compute the same are compared.
    """
    changed = [(part, part.activations) for part in module.modules() if isinstance(part, PackedState)]
    for part, _ in changed:
        part.activations = "float32"
    try:
        yield
    finally:
        for part, before in changed:
            part.activations = before
