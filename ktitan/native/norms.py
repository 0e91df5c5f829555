"""Norms and activations of rows in float32 by the native library (csrc/cpu/README.md has the formulas)."""

from __future__ import annotations

import ctypes

import torch

from ktitan.errors import UnsupportedError
from ktitan.native.arguments import check_tensor
from ktitan.native.bank import ACTIVATIONS
from ktitan.native.calls import refuse_gradient
from ktitan.native.library import loaded
from ktitan.native.status import raise_for

__all__ = ["NormStruct", "activate", "norm_struct", "plain", "rms_norm"]


class NormStruct(ctypes.Structure):
    """kt_norm of csrc/program/ktitan_program.h."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("width", ctypes.c_int64),
        ("eps", ctypes.c_float),
        ("unit_offset", ctypes.c_int32),
    )


def norm_struct(weight: torch.Tensor | None, width: int, eps: float, unit_offset: bool) -> NormStruct:
    """What the library reads of a norm over `width` numbers; it holds the address of `weight`, not the tensor.

    Raises:
        UnsupportedError: `weight` is no float32 [width] on the CPU.
    """
    if weight is not None:
        check_tensor("weight", weight, (width,), torch.float32)
    return NormStruct(None if weight is None else weight.data_ptr(), width, eps, unit_offset)


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float, unit_offset: bool = False) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension of x [..., H] float32, in a tensor of its own.

    Args:
        x: rows of H numbers.
        weight: float32 [H], or None for 1.
        eps: added to the mean.
        unit_offset: the factor is 1 + weight (Gemma).

    Raises:
        UnsupportedError: a tensor is of another kind, or x wants a gradient.
    """
    rows = plain("x", x)
    if not rows.dim() or not rows.shape[-1]:
        raise UnsupportedError(f"x has shape {list(x.shape)}", "x", "give rows of at least one number")
    width = rows.shape[-1]
    out = torch.empty_like(rows)
    what = norm_struct(None if weight is None else weight.detach(), width, eps, unit_offset)
    raise_for(loaded().kt_rms_norm(ctypes.addressof(what), rows.data_ptr(), rows.numel() // width, out.data_ptr()))
    return out


def activate(name: str, gate: torch.Tensor, up: torch.Tensor | None = None) -> torch.Tensor:
    """act(gate) * up, or act(gate), of float32 tensors of one shape; `name` is one of `ACTIVATIONS`.

    Raises:
        UnsupportedError: no such activation, or a tensor is of another kind.
    """
    if name not in ACTIVATIONS:
        raise UnsupportedError(f"activation {name!r}", remedy=f"use one of: {', '.join(ACTIVATIONS)}")
    given = plain("gate", gate)
    factor = None if up is None else plain("up", up)
    if factor is not None:
        check_tensor("up", factor, tuple(given.shape), torch.float32)
    out = torch.empty_like(given)
    address = None if factor is None else factor.data_ptr()
    raise_for(loaded().kt_activate(ACTIVATIONS.index(name), given.data_ptr(), address, given.numel(), out.data_ptr()))
    return out


def plain(name: str, x: torch.Tensor) -> torch.Tensor:
    """x as numbers one after another, copied where they are not.

    Raises:
        UnsupportedError: x is no float32 on the CPU, or wants a gradient.
    """
    refuse_gradient(x)
    x = x.detach().resolve_neg()
    if x.layout is torch.strided:
        x = x.contiguous()
    check_tensor(name, x, tuple(x.shape), torch.float32)
    return x
