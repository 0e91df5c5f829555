"""Whether a model still computes what it did: its modules, hooks and tensors as one number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

__all__ = ["fingerprint"]

# What PEFT's layers switch without another change of the tree (peft.tuners.tuners_utils.BaseTunerLayer).
_SWITCHES = ("_active_adapter", "_disable_adapters", "merged_adapters")


def fingerprint(model: nn.Module) -> int:
    """A number that changes with any module, hook, parameter or buffer of `model` that is set, and when a tensor is
    written in place; it takes about a microsecond for each module and tensor.

    What is written through `.data`, or to memory that an operator packed, is not seen.
    """
    settings = getattr(getattr(model, "config", None), "_attn_implementation", None)
    return hash((str(settings), *(_state(module) for module in model.modules())))


def _state(module: nn.Module) -> tuple[Any, ...]:
    own = module.__dict__
    switches = tuple(str(own[name]) for name in _SWITCHES if name in own)
    hooks = (*own["_forward_pre_hooks"], *own["_forward_hooks"])
    return (id(module), module.training, id(own.get("forward")), hooks, switches, tuple(_tensors(own)))


def _tensors(own: dict[str, Any]) -> Iterator[tuple[int, int]]:
    for table in (own["_parameters"], own["_buffers"]):
        for tensor in table.values():
            if tensor is not None:
                yield id(tensor), _version(tensor)


def _version(tensor: torch.Tensor) -> int:
    """How often it was written; -1 for one made under inference mode, which does not count."""
    return -1 if tensor.is_inference() else tensor._version
