"""Which experts a router will choose, guessed from the input of an earlier layer (kt_predictor of csrc/tiers)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch

from ktitan.errors import HardwareError, UnsupportedError
from ktitan.native.arguments import FLOAT_DTYPES
from ktitan.native.library import loaded

__all__ = ["Predictor", "RouterForm"]


@dataclass(frozen=True)
class RouterForm:
    """How a router goes from scores to experts.

    Attributes:
        chosen: K, experts of a token.
        sigmoid: scores pass the logistic function before corrections are added; softmax keeps the order and is none.
        groups: the experts lie in so many groups of equal size; 1: none.
        groups_kept: only experts of so many groups are chosen.
        group_best: a group counts for the sum of so many of its best scores.
    """

    chosen: int
    sigmoid: bool = False
    groups: int = 1
    groups_kept: int = 1
    group_best: int = 1


class _PredictorStruct(ctypes.Structure):
    _fields_ = (
        ("router", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("correction", ctypes.c_void_p),
        ("first_record", ctypes.c_int64),
        ("experts", ctypes.c_int64),
        ("hidden", ctypes.c_int64),
        ("chosen", ctypes.c_int64),
        ("dtype", ctypes.c_int32),
        ("sigmoid", ctypes.c_int32),
        ("groups", ctypes.c_int32),
        ("groups_kept", ctypes.c_int32),
        ("group_best", ctypes.c_int32),
    )


class Predictor:
    """A router as native code reads it; its tensors live as long as this does, and copies of a model share it.

    Args:
        router: [E, H], float32, bfloat16 or float16, contiguous, on the CPU.
        form: from scores to experts.
        scale: [H] float32, what the input is multiplied with first; None: 1.
        bias: [E] float32, added to the scores; None: 0.
        correction: [E] float32, added behind the logistic function; None: 0.
        first_record: of expert 0 in the store.

    Raises:
        UnsupportedError: a tensor is of another kind.
    """

    def __init__(
        self,
        router: torch.Tensor,
        form: RouterForm,
        *,
        scale: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        correction: torch.Tensor | None = None,
        first_record: int = 0,
    ) -> None:
        if router.dim() != 2 or router.dtype not in FLOAT_DTYPES or not _is_plain(router):
            raise UnsupportedError(
                f"a router is {router.dtype} {list(router.shape)} on {router.device}, or not contiguous",
                "router",
                "give contiguous floats [E, H] on the CPU",
            )
        self.experts, self.hidden = router.shape
        for name, tensor, size in (
            ("scale", scale, self.hidden),
            ("bias", bias, self.experts),
            ("correction", correction, self.experts),
        ):
            _check_vector(name, tensor, size)
        self.form = form
        self._tensors = (router.detach(), scale, bias, correction)
        self.struct = _PredictorStruct(
            *(None if tensor is None else tensor.data_ptr() for tensor in self._tensors),
            first_record,
            self.experts,
            self.hidden,
            form.chosen,
            FLOAT_DTYPES[router.dtype],
            int(form.sigmoid),
            form.groups,
            form.groups_kept,
            form.group_best,
        )

    @property
    def address(self) -> int:
        """Of the kt_predictor."""
        return ctypes.addressof(self.struct)

    @property
    def own_bytes(self) -> int:
        """Bytes of what is held beside the model's own router."""
        return sum(tensor.nbytes for tensor in self._tensors[1:] if tensor is not None)

    def predict(self, hidden: torch.Tensor, most: int) -> torch.Tensor:
        """hidden [T, H] -> the best `most` experts of each row, best first, [T, most] int64; -1 behind the last one.

        Raises:
            UnsupportedError: `hidden` is of another kind.
            HardwareError: the native library refuses the sizes.
        """
        rows = hidden.detach().contiguous()
        if rows.dim() != 2 or rows.shape[1] != self.hidden or rows.dtype not in FLOAT_DTYPES or not rows.is_cpu:
            raise UnsupportedError(
                f"hidden is {rows.dtype} {list(rows.shape)} on {rows.device}",
                "hidden",
                f"give floats [T, {self.hidden}] on the CPU",
            )
        experts = torch.empty((rows.shape[0], most), dtype=torch.int64)
        status = loaded().kt_predict(
            self.address, rows.data_ptr(), FLOAT_DTYPES[rows.dtype], rows.shape[0], most, experts.data_ptr()
        )
        if status:
            raise HardwareError(
                f"the native library refused a prediction (status {status})",
                remedy="reinstall ktitan; its parts differ",
            )
        return experts

    def __deepcopy__(self, memo: dict[int, Any]) -> Predictor:
        return self

    def __reduce__(self) -> Any:
        raise UnsupportedError(
            "predictions of streamed experts cannot be pickled", "store", "call model.ktitan.undo() first"
        )


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.is_cpu and tensor.layout is torch.strided and tensor.is_contiguous()


def _check_vector(name: str, tensor: torch.Tensor | None, size: int) -> None:
    if tensor is None:
        return
    if tensor.shape != (size,) or tensor.dtype is not torch.float32 or not _is_plain(tensor):
        raise UnsupportedError(
            f"{name} is {tensor.dtype} {list(tensor.shape)} on {tensor.device}, or not contiguous",
            name,
            f"give contiguous float32 [{size}] on the CPU",
        )
