"""When an operator may leave its arithmetic to the native library's float32 functions."""

from __future__ import annotations

import torch
from torch import nn

from ktitan.native import native_reason
from ktitan.native.calls import is_recorded
from ktitan.operator import OperatorContext

__all__ = ["float32_reason", "runs_natively"]


def float32_reason(context: OperatorContext) -> str | None:
    """Why a module cannot compute in float32 on the CPU by the native library, or None."""
    if context.device.type != "cpu":
        return f"it computes on the CPU, the module is on {context.device}"
    if context.dtype is not torch.float32:
        return f"it computes in float32, the model in {str(context.dtype).removeprefix('torch.')}"
    reason = native_reason()
    return None if reason is None else f"the native CPU library is {reason}"


def runs_natively(x: torch.Tensor, module: nn.Module) -> bool:
    """Whether a call of `module` with `x` can be a native one; if not, it computes by the formula of its torch sibling.

    That is so after a cast of the whole model, under autocast, where a gradient is wanted (the library has no backward
    pass), and while a graph is recorded, which must hold torch's operations.
    """
    if x.dtype is not torch.float32 or x.device.type != "cpu" or torch.is_autocast_enabled("cpu") or is_recorded():
        return False
    return not torch.is_grad_enabled() or not (x.requires_grad or any(one.requires_grad for one in module.parameters()))
