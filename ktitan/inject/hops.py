"""Moves inputs to a module's device and its outputs back, as forward hooks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.utils import ModelOutput

from ktitan.inject.journal import Journal
from ktitan.plan.rows import Hop

__all__ = ["add_hop", "moved"]


def add_hop(module: nn.Module, hop: Hop, journal: Journal) -> None:
    """Register the hop's hooks: hidden states, masks, rotary tables and positions all move; a cache stays, since its
    layers live where they are written.
    """

    if not hop.path:
        arrival = _Arrive(hop.device, remembers=True)
        journal.add_hook(module.register_forward_pre_hook(arrival, with_kwargs=True))
        journal.add_hook(module.register_forward_hook(_Return(arrival)))
        return
    journal.add_hook(module.register_forward_pre_hook(_Arrive(hop.device), with_kwargs=True))
    if hop.returns:
        journal.add_hook(module.register_forward_hook(_Leave(hop.parent_device)))


@dataclass
class _Arrive:
    """Pre-hook; a class, not a closure, so that an injected model can be pickled."""

    device: torch.device
    remembers: bool = False
    came_from: torch.device | None = None

    def __call__(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        if self.remembers:
            tensors = (v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor))
            self.came_from = next((tensor.device for tensor in tensors), None)
        return moved(args, self.device), moved(kwargs, self.device)


@dataclass(frozen=True)
class _Leave:
    """Post-hook."""

    device: torch.device

    def __call__(self, _: nn.Module, __: tuple[Any, ...], output: Any) -> Any:
        return moved(output, self.device)


@dataclass(frozen=True)
class _Return:
    """Post-hook of the whole model: outputs go to where the inputs came from; the cache in them stays."""

    arrival: _Arrive

    def __call__(self, _: nn.Module, __: tuple[Any, ...], output: Any) -> Any:
        device = self.arrival.came_from
        if device is None:
            return output
        if not isinstance(output, ModelOutput):
            return moved(output, device)
        for name, value in output.items():
            output[name] = moved(value, device)
        return output


def moved(value: Any, device: torch.device) -> Any:
    """`value` with every tensor in it on `device`; tuples, lists and dicts are followed, other objects left alone."""
    if isinstance(value, torch.Tensor):
        return value if value.device == device else value.to(device, non_blocking=True)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(moved(item, device) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(moved(item, device) for item in value)
    if type(value) is dict:
        return {key: moved(item, device) for key, item in value.items()}
    return value
