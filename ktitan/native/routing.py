"""Which experts compute a token, and how much of a shared expert counts (kt_route and kt_gate of csrc/program).

Shape letters: T tokens, H hidden, E experts, K experts of a token.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ktitan.errors import Fault, FormatError, UnsupportedError
from ktitan.native.calls import refuse_gradient
from ktitan.native.cpu import MatrixStruct
from ktitan.native.library import loaded
from ktitan.native.matrix import PackedMatrix
from ktitan.native.status import raise_for

__all__ = ["SCORES", "Router", "RouterStruct", "gated", "matrix_over", "route"]

# enum kt_scores of csrc/program/ktitan_program.h, in its order.
SCORES = ("softmax", "softmax_chosen", "sigmoid")

_FORMATS = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


class RouterStruct(ctypes.Structure):
    """kt_router of csrc/program/ktitan_program.h."""

    _fields_ = (
        ("weights", MatrixStruct),
        ("bias", ctypes.c_void_p),
        ("correction", ctypes.c_void_p),
        ("chosen", ctypes.c_int64),
        ("scores", ctypes.c_int32),
        ("groups", ctypes.c_int32),
        ("groups_kept", ctypes.c_int32),
        ("group_best", ctypes.c_int32),
        ("normalise", ctypes.c_int32),
        ("scaling", ctypes.c_float),
    )


@dataclass(frozen=True, eq=False)
class Router:
    """From the router's logits W x + bias to experts and their weights.

    Attributes:
        weights: [E, H], plain floats.
        bias: float32 [E], or None.
        correction: float32 [E], added to the scores where experts are compared, not to their weights; or None.
        chosen: K.
        scores: "softmax" of all logits, "softmax_chosen" of the chosen ones, or "sigmoid".
        groups: the experts lie in so many groups of equal size; 1: none.
        groups_kept: experts are chosen of so many groups.
        group_best: a group counts for the sum of so many of its best scores.
        normalise: weights are divided by their sum (plus 1e-20 with "sigmoid", as in DeepSeek-V3).
        scaling: weights are multiplied with it at last.

    Raises:
        FormatError: with all that does not fit.
    """

    weights: PackedMatrix
    bias: torch.Tensor | None = None
    correction: torch.Tensor | None = None
    chosen: int = 1
    scores: str = "softmax"
    groups: int = 1
    groups_kept: int = 1
    group_best: int = 1
    normalise: bool = False
    scaling: float = 1.0

    def __post_init__(self) -> None:
        faults = [*self._size_faults(), *self._tensor_faults("bias"), *self._tensor_faults("correction")]
        if faults:
            raise FormatError.from_faults(faults)

    @property
    def experts(self) -> int:
        """E."""
        return self.weights.rows

    @property
    def hidden(self) -> int:
        """H."""
        return self.weights.columns

    @cached_property
    def struct(self) -> RouterStruct:
        """What native code reads; good as long as this lives."""
        matrix = self.weights
        return RouterStruct(
            MatrixStruct(matrix.address, matrix.rows, matrix.columns, matrix.row_bytes, matrix.ggml_type),
            *(None if vector is None else vector.data_ptr() for vector in (self.bias, self.correction)),
            self.chosen,
            SCORES.index(self.scores),
            self.groups,
            self.groups_kept,
            self.group_best,
            int(self.normalise),
            self.scaling,
        )

    @property
    def address(self) -> int:
        """Of the kt_router."""
        return ctypes.addressof(self.struct)

    def __deepcopy__(self, memo: dict[int, Any]) -> Router:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "struct"}

    def _size_faults(self) -> list[Fault]:
        faults = []
        if not self.weights.is_float:
            faults.append(Fault(f"a router is {self.weights.format}", "weights", "store it as plain floats"))
        if self.scores not in SCORES:
            faults.append(Fault(f"scores {self.scores!r}", "scores", f"use one of: {', '.join(SCORES)}"))
        whole = self.groups >= 1 and self.experts % self.groups == 0
        size = self.experts // self.groups if whole else 0
        if not whole or not 1 <= self.groups_kept <= self.groups or not 1 <= self.group_best <= max(size, 1):
            message = f"{self.groups_kept} of {self.groups} groups by their best {self.group_best}"
            faults.append(Fault(message, "groups", f"let whole groups make up the {self.experts} experts"))
        most = self.groups_kept * size if self.groups > 1 else self.experts
        if not 1 <= self.chosen <= most:
            faults.append(Fault(f"{self.chosen} experts of {most}", "chosen", f"choose 1 to {most}"))
        return faults

    def _tensor_faults(self, name: str) -> list[Fault]:
        vector: torch.Tensor | None = getattr(self, name)
        if vector is None or (vector.shape == (self.experts,) and _is_plain(vector)):
            return []
        found = f"{name} is {vector.dtype} {list(vector.shape)} on {vector.device}, or not contiguous"
        return [Fault(found, name, f"give contiguous float32 [{self.experts}] on the CPU")]


def matrix_over(weight: torch.Tensor) -> PackedMatrix:
    """A matrix over the memory of a tensor [N, K] of plain floats, which it keeps alive; nothing is copied.

    Raises:
        UnsupportedError: the tensor is no contiguous matrix of floats on the CPU.
    """
    if weight.dim() != 2 or weight.dtype not in _FORMATS or not weight.is_cpu or not weight.is_contiguous():
        raise UnsupportedError(
            f"weights are {weight.dtype} {list(weight.shape)} on {weight.device}, or not contiguous",
            "weights",
            "give contiguous floats [N, K] on the CPU",
        )
    return PackedMatrix.over(_FORMATS[weight.dtype], weight.shape[1], weight.detach().view(torch.uint8).numpy())


def route(hidden: torch.Tensor, router: Router, logits: bool = False) -> tuple[torch.Tensor, ...]:
    """hidden [T, H] float32 -> (index [T, K] int64, weights [T, K] float32), best first, of equals the lower number.

    A function of the row and the router only (csrc/cpu/README.md); NaN is worse than any number. With `logits` a third
    tensor follows, [T, E].

    Raises:
        UnsupportedError: `hidden` is of another kind, or wants a gradient.
        HardwareError: no memory for temporaries.
    """
    refuse_gradient(hidden)
    if hidden.dim() != 2 or hidden.shape[1] != router.hidden or hidden.dtype is not torch.float32 or not hidden.is_cpu:
        raise UnsupportedError(
            f"hidden is {hidden.dtype} {list(hidden.shape)} on {hidden.device}",
            "hidden",
            f"give float32 [T, {router.hidden}] on the CPU",
        )
    rows, tokens = hidden.contiguous(), hidden.shape[0]
    index = torch.empty((tokens, router.chosen), dtype=torch.int64, device=hidden.device)
    weights = torch.empty((tokens, router.chosen), dtype=torch.float32, device=hidden.device)
    extra = torch.empty((tokens, router.experts), dtype=torch.float32, device=hidden.device) if logits else None
    raise_for(
        loaded().kt_route(
            router.address,
            rows.data_ptr(),
            tokens,
            index.data_ptr(),
            weights.data_ptr(),
            None if extra is None else extra.data_ptr(),
        )
    )
    return (index, weights) if extra is None else (index, weights, extra)


def gated(x: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """x [T, W] * sigmoid(scores [T, 1]), both float32 on the CPU -> [T, W].

    Raises:
        UnsupportedError: a tensor is of another kind, or wants a gradient.
    """
    refuse_gradient(x)
    refuse_gradient(scores)
    for name, tensor, shape in (("x", x, x.shape if x.dim() == 2 else "[T, W]"), ("scores", scores, (len(x), 1))):
        if tensor.shape != shape or tensor.dtype is not torch.float32 or not tensor.is_cpu:
            raise UnsupportedError(
                f"{name} is {tensor.dtype} {list(tensor.shape)} on {tensor.device}",
                name,
                f"give float32 {shape} on the CPU",
            )
    rows, shares = x.contiguous(), scores.contiguous()
    out = torch.empty_like(rows)
    raise_for(loaded().kt_gate(rows.data_ptr(), shares.data_ptr(), *rows.shape, out.data_ptr()))
    return out


def _is_plain(vector: torch.Tensor) -> bool:
    return vector.is_cpu and vector.dtype is torch.float32 and vector.is_contiguous()
