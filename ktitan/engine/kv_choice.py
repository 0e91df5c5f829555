"""Which pool a model's keys and values go to."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from ktitan.context import KVAllowance, KVPool
from ktitan.engine.kv_native import NativeKVPool
from ktitan.engine.kv_torch import TorchKVPool
from ktitan.errors import UnsupportedError
from ktitan.kv_formats import AS_COMPUTED
from ktitan.native import native_reason

__all__ = ["pool_maker"]


def pool_maker(model: nn.Module, kv: str = AS_COMPUTED) -> Callable[[int | KVAllowance | None], KVPool]:
    """Makes pools for a limit: native ones where the model computes in float32 on the CPU, else torch's.

    Args:
        model: stock or injected.
        kv: format of pages, of `ktitan.kv_formats`.

    Raises:
        UnsupportedError: the model computes in another way, or the native library is missing, and `kv` is not "f32".
    """
    reason = native_reason() if _is_float32_on_cpu(model) else "this model does not compute in float32 on the CPU"
    if reason is None:
        return partial(NativeKVPool, format=kv)
    if kv != AS_COMPUTED:
        raise UnsupportedError(
            f"keys and values cannot be stored as {kv}: {reason}", "kv", "load the model without kv="
        )
    return TorchKVPool


def _is_float32_on_cpu(model: nn.Module) -> bool:
    """By its tensors; a model whose weights are all packed has its config's dtype."""
    if torch.is_autocast_enabled("cpu"):
        return False
    tensors = [*model.parameters(), *model.buffers()]
    dtypes = {tensor.dtype for tensor in model.parameters() if tensor.is_floating_point()}
    own = getattr(getattr(model, "config", None), "dtype", None)
    return all(tensor.is_cpu for tensor in tensors) and (dtypes or {own or torch.float32}) == {torch.float32}
