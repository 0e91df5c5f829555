"""Checks of a backend's arguments before raw addresses are used; shared by all backends.

Each function returns the sizes that it read, or raises `UnsupportedError` with what was found.
"""

from __future__ import annotations

from typing import Protocol

import torch

from ktitan.errors import UnsupportedError

__all__ = [
    "FLOAT_DTYPES",
    "check_experts",
    "check_linear",
    "check_rows",
    "check_tensor",
    "id_error",
    "index_error",
]

# Dtypes of activations, with ggml's type numbers.
FLOAT_DTYPES: dict[torch.dtype, int] = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 30}

_ACTIVATIONS = ("int8", "float32")


class _Matrix(Protocol):
    """The sizes of a weight [rows, columns], wherever it is."""

    rows: int
    columns: int


class _Experts(Protocol):
    """The width of a layer's experts, wherever they are."""

    @property
    def hidden(self) -> int: ...


def check_linear(
    x: torch.Tensor, matrix: _Matrix, bias: torch.Tensor | None, activations: str, out: torch.Tensor
) -> int:
    """M, the rows of `x` [M, K]; `out` must be [M, N] in its dtype, `bias` float32 [N]."""
    _check_activations(activations)
    rows = _check_floats("x", x, matrix.columns)
    check_tensor("out", out, (rows, matrix.rows), x.dtype)
    if bias is not None:
        check_tensor("bias", bias, (matrix.rows,), torch.float32)
    _check_apart(x, out)
    return rows


def check_experts(
    hidden: torch.Tensor,
    index: torch.Tensor,
    weights: torch.Tensor,
    bank: _Experts,
    activations: str,
    out: torch.Tensor,
) -> tuple[int, int]:
    """(T, K) of `hidden` [T, H] and `index` [T, K]; the values of `index` are not looked at."""
    _check_activations(activations)
    width = bank.hidden
    tokens = _check_floats("hidden", hidden, width)
    slots = index.shape[1] if index.dim() == 2 else 0
    check_tensor("index", index, (tokens, slots), torch.int64)
    check_tensor("weights", weights, (tokens, slots), torch.float32)
    check_tensor("out", out, (tokens, width), hidden.dtype)
    _check_apart(hidden, out)
    return tokens, slots


def check_rows(matrix: _Matrix, ids: torch.Tensor, out: torch.Tensor) -> int:
    """T, the number of `ids`; `out` must be float32 [T, K]. The values of `ids` are not looked at."""
    count = ids.numel()
    check_tensor("ids", ids, (count,), torch.int64)
    check_tensor("out", out, (count, matrix.columns), torch.float32)
    return count


def index_error(index: torch.Tensor, experts: int) -> UnsupportedError:
    """The error for an `index` [T, K] that has a value below 0 or above `experts`."""
    low, high = int(index.min()), int(index.max())
    wrong = low if low < 0 else high
    return UnsupportedError(
        f"expert index {wrong} in a layer of {experts} experts",
        remedy=f"let the router give 0 to {experts - 1}, or {experts} for a pair that is left out",
    )


def id_error(ids: torch.Tensor, rows: int) -> UnsupportedError:
    """The error for `ids` [T] that have a value outside 0..rows-1."""
    low, high = int(ids.min()), int(ids.max())
    wrong = low if low < 0 else high
    return UnsupportedError(f"row {wrong} of a table of {rows} rows", remedy=f"give ids from 0 to {rows - 1}")


def _check_activations(activations: str) -> None:
    if activations not in _ACTIVATIONS:
        raise UnsupportedError(f"activations {activations!r}", "activations", f"use one of: {', '.join(_ACTIVATIONS)}")


def _check_floats(name: str, tensor: torch.Tensor, columns: int) -> int:
    """The rows of activations [rows, columns] in a dtype that kernels read."""
    rows = tensor.shape[0] if tensor.dim() == 2 else 1
    if tensor.dtype not in FLOAT_DTYPES:
        raise UnsupportedError(
            f"{name} is {tensor.dtype}", name, "convert it to float32, bfloat16 or float16 before the call"
        )
    check_tensor(name, tensor, (rows, columns), tensor.dtype)
    return rows


def check_tensor(name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Refuse anything but a contiguous CPU tensor of `dtype` and `shape`.

    Raises:
        UnsupportedError: `name` is another kind of tensor.
    """
    # Each call of an operator comes here several times, so what is right must cost little.
    if tensor.shape == shape and tensor.dtype is dtype and tensor.is_cpu and _is_plain(tensor):
        return
    if tensor.shape != shape:
        raise UnsupportedError(f"{name} has shape {list(tensor.shape)}", name, f"give a tensor of shape {list(shape)}")
    if tensor.dtype is not dtype:
        raise UnsupportedError(f"{name} is {tensor.dtype}", name, f"give {dtype}")
    if not tensor.is_cpu:
        raise UnsupportedError(
            f"{name} is on {tensor.device}; CPU kernels cannot read it", name, "move it to the CPU before the call"
        )
    raise UnsupportedError(f"{name} is not contiguous", name, "call .contiguous() before the call")


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its numbers lie one after another; a sparse tensor has no memory of that kind."""
    return tensor.layout is torch.strided and tensor.is_contiguous()


def _check_apart(source: torch.Tensor, out: torch.Tensor) -> None:
    """Refuse an `out` that shares memory with `source`: it would be overwritten while it is read."""
    first, second = source.data_ptr(), out.data_ptr()
    if first < second + out.nbytes and second < first + source.nbytes:
        raise UnsupportedError("out overlaps the input", "out", "give a tensor of its own for the result")
