"""A first placement by budget: what every token needs goes to the GPUs first, then routed experts while they fit."""

from __future__ import annotations

import torch
from accelerate.utils import compute_module_sizes
from torch import nn

from ktitan.hardware import Hardware
from ktitan.plan.kv import PREFILL_TOKENS, context_length, kv_token_bytes
from ktitan.plan.make import model_dtype
from ktitan.plan.workspace import Attention, workspace_bytes
from ktitan.tiers import Budget

__all__ = ["fill"]

# Room that the CUDA context and the allocator's fragments take besides what is planned.
RESERVE_BYTES = 1 << 30


def fill(
    model: nn.Module, budget: Budget, hardware: Hardware, device: torch.device, context_tokens: int | None = None
) -> dict[str, torch.device]:
    """Devices for the subtrees that do not compute on `device`, by path.

    Layers without their routed experts are placed in order on the GPUs, then the experts of each layer beside their
    layer while that GPU has room; the rest computes on the CPU. Sizes are those of the model's dtypes. With no GPU, or
    when `device` is the CPU, everything stays on `device`.
    """
    if device.type == "cpu" or not hardware.gpus:
        return {}
    sizes = compute_module_sizes(model)
    room = _room(model, budget, hardware, context_tokens)
    layers = _layers(model)
    experts = {layer: _experts_below(model, layer) for layer in layers}
    room[device] = room.get(device, 0) - (sizes[""] - sum(sizes[layer] for layer in layers))
    where: dict[str, torch.device] = {}
    for layer in layers:
        where[layer] = _first_with(room, sizes[layer] - sum(sizes[path] for path in experts[layer]))
    for layer in layers:
        for path in experts[layer]:
            beside = where[layer]
            fits = beside.type != "cpu" and room[beside] >= sizes[path]
            if fits:
                room[beside] -= sizes[path]
            elif beside.type != "cpu":
                where[path] = torch.device("cpu")
    return {path: place for path, place in where.items() if place != device}


def _layers(model: nn.Module) -> list[str]:
    """Paths of the decoder layers, in order: the modules that transformers says must not be split."""
    unsplit = set(getattr(model, "_no_split_modules", None) or [])
    return [path for path, module in model.named_modules() if type(module).__name__ in unsplit]


def _experts_below(model: nn.Module, layer: str) -> list[str]:
    """Modules that hold routed experts: those with a parameter of three dimensions, the first being the expert."""
    below = model.get_submodule(layer).named_modules(prefix=layer)
    return [path for path, module in below if any(p is not None and p.dim() == 3 for p in module._parameters.values())]


def _first_with(room: dict[torch.device, int], size: int) -> torch.device:
    """The first GPU that still has `size` bytes, which are taken from it, or the CPU."""
    for place, free in room.items():
        if free >= size:
            room[place] = free - size
            return place
    return torch.device("cpu")


def _room(model: nn.Module, budget: Budget, hardware: Hardware, context_tokens: int | None) -> dict[torch.device, int]:
    """Bytes for weights on each GPU: what is free, within the budget, less KV, workspace and a reserve."""
    dtype = model_dtype(model)
    tokens = context_length(model, context_tokens)
    other = (kv_token_bytes(model, dtype) or 0) * tokens
    other += workspace_bytes(model, dtype, min(PREFILL_TOKENS, tokens), tokens, Attention.FUSED)
    left = budget.vram_bytes if budget.vram_bytes is not None else sum(gpu.free_bytes for gpu in hardware.gpus)
    room: dict[torch.device, int] = {}
    for number, gpu in enumerate(hardware.gpus):
        share = max(0, min(gpu.free_bytes - RESERVE_BYTES, left))
        room[torch.device("cuda", gpu.index)] = max(0, share - (other if number == 0 else 0))
        left -= share
    return room
