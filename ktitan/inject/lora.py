"""Applies the pairs of a LoRA adapter as forward hooks, so that any operator may stand at the adapted path."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ktitan.inject.journal import Journal
from ktitan.weights.adapter import Adapter

__all__ = ["LowRank", "adapt", "adapter_bytes"]


class LowRank:
    """Post-hook of a linear module: y + scaling * B (A x), with x [..., in] and y [..., out].

    Computed in float32 whatever the model's dtype, as PEFT does by default, and rounded once to the dtype of y. A
    class, not a closure, so that an adapted model can be copied and pickled.
    """

    def __init__(self, a: torch.Tensor, b: torch.Tensor, scaling: float) -> None:
        self.a = a
        self.b = b
        self.scaling = scaling

    def __call__(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: torch.Tensor) -> Any:
        """The adapted output."""
        x = args[0] if args else kwargs["input"]
        if self.a.device != x.device:  # the user has moved the model
            self.a, self.b = self.a.to(x.device), self.b.to(x.device)
        change = functional.linear(functional.linear(x.to(self.a.dtype), self.a), self.b)
        return (output + self.scaling * change).to(output.dtype)


def adapt(model: nn.Module, adapter: Adapter, journal: Journal) -> None:
    """Read every pair and hook it to the module that now stands at its path.

    Absorbed attention sees the hook on kv_b_proj and calls the module in place of taking its weight apart.

    Args:
        model: the injected model, loaded.
        adapter: checked by the plan.
        journal: records the hooks.

    Raises:
        IoError: the adapter could not be read.
    """
    for path, pair in adapter.pairs.items():
        module = model.get_submodule(path)
        hook = LowRank(*adapter.read(pair, _device_of(module)), pair.scaling)
        # Before the hop's hook, which moves the output to another device.
        journal.add_hook(module.register_forward_hook(hook, prepend=True, with_kwargs=True))
    adapter.source.close()


def adapter_bytes(model: nn.Module) -> dict[str, int]:
    """Bytes that the pairs of an adapted model hold, by tier."""
    held: dict[str, int] = {}
    for module in model.modules():
        for hook in module._forward_hooks.values():
            if isinstance(hook, LowRank):
                tier = "ram" if hook.a.device.type == "cpu" else "vram"
                held[tier] = held.get(tier, 0) + hook.a.nbytes + hook.b.nbytes
    return held


def _device_of(module: nn.Module) -> torch.device:
    """Where the module's tensors are; packed weights are on the CPU and are none of them."""
    first = next(module.parameters(), None)
    return torch.device("cpu") if first is None else first.device
