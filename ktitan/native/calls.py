"""What operators call: results in fresh tensors, any leading dimensions, and an entry for torch.compile."""

from __future__ import annotations

import torch

from ktitan.errors import UnsupportedError
from ktitan.formats import find_format
from ktitan.native.backends import backend
from ktitan.native.bank import ExpertBank
from ktitan.native.matrix import PackedMatrix
from ktitan.native.torch_ops import handle_of

__all__ = ["embedding", "experts", "format_reason", "is_recorded", "linear", "refuse_gradient"]

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def format_reason(name: str) -> str | None:
    """Why matrices of a storage format cannot be multiplied as they are, or None."""
    stored = find_format(name, "matrix")
    if stored.dequantize is not None or stored.torch_dtype in _FLOATS:
        return None
    return f"no CPU kernel reads {name}"


def linear(x: torch.Tensor, matrix: PackedMatrix, bias: torch.Tensor | None, activations: str) -> torch.Tensor:
    """x [..., K] times the rows of `matrix` [N, K], plus `bias` [N] (float32) -> [..., N] in x's dtype.

    Args:
        x: float32, bfloat16 or float16 on the CPU.
        matrix: the weight.
        bias: added in float32 before the one rounding to x's dtype.
        activations: "int8" or "float32"; see `ktitan.native.backends.Backend`.

    Raises:
        UnsupportedError: x is of another kind, or wants a gradient.
    """
    if is_recorded():
        return torch.ops.ktitan.linear_cpu(x, handle_of(matrix), bias, activations)
    refuse_gradient(x)
    if not x.dim():
        raise UnsupportedError("x has no dimensions", "x", f"give a tensor [..., {matrix.columns}]")
    rows = x.reshape(-1, x.shape[-1]).resolve_neg().contiguous()
    out = torch.empty((rows.shape[0], matrix.rows), dtype=x.dtype, device=x.device)
    backend().linear(rows, matrix, bias, activations, out)
    return out.view(*x.shape[:-1], matrix.rows)


def experts(
    hidden: torch.Tensor, index: torch.Tensor, weights: torch.Tensor, bank: ExpertBank, activations: str
) -> torch.Tensor:
    """hidden [T, H], index [T, K] int64, weights [T, K] -> [T, H] in hidden's dtype.

    Raises:
        UnsupportedError: an index is out of range, a tensor is of another kind, or hidden wants a gradient.
    """
    if is_recorded():
        return torch.ops.ktitan.experts_cpu(hidden, index, weights, handle_of(bank), activations)
    refuse_gradient(hidden)
    refuse_gradient(weights)
    out = torch.empty_like(hidden, memory_format=torch.contiguous_format)
    shares = weights.detach().to(torch.float32).resolve_neg().contiguous()
    backend().experts(hidden.resolve_neg().contiguous(), index.contiguous(), shares, bank, activations, out)
    return out


def embedding(ids: torch.Tensor, matrix: PackedMatrix, dtype: torch.dtype) -> torch.Tensor:
    """Rows of `matrix` [V, K] by ids [...] (any integer dtype) -> [..., K] in `dtype`.

    Raises:
        UnsupportedError: an id is out of range, or `ids` is not on the CPU.
    """
    if is_recorded():
        return torch.ops.ktitan.embedding_cpu(ids, handle_of(matrix)).to(dtype)
    if ids.is_floating_point() or ids.dtype is torch.bool:
        raise UnsupportedError(f"ids are {ids.dtype}", "ids", "give whole numbers, such as int64")
    flat = ids.reshape(-1).to(torch.int64).contiguous()
    out = torch.empty((flat.shape[0], matrix.columns), dtype=torch.float32, device=flat.device)
    backend().rows(matrix, flat, out)
    return out.to(dtype).view(*ids.shape, matrix.columns)


def is_recorded() -> bool:
    """Whether a graph is made of the calls: it must hold the operation, not what is computed on the way."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._len_torch_dispatch_stack() > 0


def refuse_gradient(x: torch.Tensor) -> None:
    """Raise when a result would have to lead back to `x`.

    Raises:
        UnsupportedError: `x` wants a gradient and gradients are on.
    """
    if x.requires_grad and torch.is_grad_enabled():
        raise UnsupportedError(
            "CPU kernels have no backward pass, and the input wants a gradient",
            remedy="run under torch.no_grad(), or use the torch operators in the rules",
        )
