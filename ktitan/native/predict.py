"""Which experts a router will choose, from the input of another layer (kt_predictor of csrc/tiers/ktitan_tiers.h)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch

from ktitan.errors import UnsupportedError
from ktitan.native.arguments import FLOAT_DTYPES
from ktitan.native.library import loaded

__all__ = ["Predictor"]

_OK = 0
_INTEGERS = ("first_record", "experts", "hidden", "chosen")
_FLAGS = ("dtype", "sigmoid", "groups", "groups_kept", "group_best")


class _PredictorStruct(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("router", "scale", "bias", "correction")),
        *((name, ctypes.c_int64) for name in _INTEGERS),
        *((name, ctypes.c_int32) for name in _FLAGS),
    )


@dataclass(frozen=True, eq=False)
class Predictor:
    """scores = act(router (x * scale) + bias) + correction; the best `chosen`, with groups only of the best groups.

    Attributes:
        router: [E, H], float32, bfloat16 or float16, on the CPU.
        chosen: experts of a token.
        scale: [H] float32, or None for ones.
        bias, correction: [E] float32, or None.
        sigmoid: act is the logistic function; else there is none (softmax keeps the order).
        groups, groups_kept, group_best: equal groups of neighbours, how many stay, and of how many of its best scores a
            group's score is the sum (DeepSeek-V2: 1, V3: 2). One group: no limit.
    """

    router: torch.Tensor
    chosen: int
    scale: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    correction: torch.Tensor | None = None
    sigmoid: bool = False
    groups: int = 1
    groups_kept: int = 1
    group_best: int = 1

    @property
    def experts(self) -> int:
        """E."""
        return int(self.router.shape[0])

    @property
    def hidden(self) -> int:
        """H."""
        return int(self.router.shape[1])

    def struct(self, first_record: int = 0) -> _PredictorStruct:
        """For the library; valid while this object lives. `first_record`: of expert 0."""
        tensors = (self.router, self.scale, self.bias, self.correction)
        numbers = (first_record, self.experts, self.hidden, self.chosen)
        flags = (FLOAT_DTYPES[self.router.dtype], int(self.sigmoid), self.groups, self.groups_kept, self.group_best)
        return _PredictorStruct(*(None if one is None else one.data_ptr() for one in tensors), *numbers, *flags)

    def predict(self, hidden: torch.Tensor, most: int) -> torch.Tensor:
        """The best `most` experts of each row of hidden [T, H], best first: [T, most] int64; -1 beyond the groups.

        Raises:
            UnsupportedError: shapes or dtypes do not fit.
        """
        rows = hidden.detach().contiguous()
        if rows.dim() != 2 or rows.shape[1] != self.hidden or rows.dtype not in FLOAT_DTYPES:
            raise UnsupportedError(f"hidden is {tuple(rows.shape)} {rows.dtype}", "hidden", f"give [T, {self.hidden}]")
        found = torch.empty((rows.shape[0], most), dtype=torch.int64)
        struct = self.struct()
        status = loaded().kt_predict(
            ctypes.byref(struct), rows.data_ptr(), FLOAT_DTYPES[rows.dtype], rows.shape[0], most, found.data_ptr()
        )
        if status != _OK:
            raise UnsupportedError(f"the prediction was refused (status {status})", "hidden", "report this")
        return found

    def reference(self, hidden: torch.Tensor, most: int) -> torch.Tensor:
        """`predict` in PyTorch, in float32."""
        x = hidden.float() if self.scale is None else hidden.float() * self.scale
        scores = x @ self.router.float().T
        scores = scores if self.bias is None else scores + self.bias
        scores = torch.sigmoid(scores) if self.sigmoid else scores
        scores = scores if self.correction is None else scores + self.correction
        if self.groups > 1:
            parts = scores.view(len(scores), self.groups, -1)
            kept = parts.topk(self.group_best, -1).values.sum(-1).topk(self.groups_kept, -1).indices
            hidden_groups = torch.ones(len(scores), self.groups, dtype=torch.bool).scatter(1, kept, False)
            scores = parts.masked_fill(hidden_groups[..., None], -torch.inf).view(len(scores), -1)
        best = scores.topk(most, -1)
        return torch.where(best.values == -torch.inf, -1, best.indices)

    def __deepcopy__(self, memo: dict[int, Any]) -> Predictor:
        return self
