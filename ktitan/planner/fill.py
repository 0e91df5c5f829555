"""A first placement by budget: layers fill the GPUs in order, the rest computes on the CPU."""

from __future__ import annotations

import logging

import torch
from accelerate import infer_auto_device_map
from torch import nn

from ktitan.hardware import Hardware
from ktitan.plan.kv import context_length, kv_token_bytes, workspace_bytes
from ktitan.plan.make import model_dtype
from ktitan.tiers import Budget

__all__ = ["fill"]

# Room that the CUDA context and the allocator's fragments take besides what is planned.
RESERVE_BYTES = 1 << 30

logger = logging.getLogger(__name__)


def fill(model: nn.Module, budget: Budget, hardware: Hardware, device: torch.device) -> dict[str, torch.device]:
    """Devices for the subtrees that do not compute on `device`, by path.

    Whole layers are placed in order by accelerate's `infer_auto_device_map`, sizes being those of the model's dtypes. With
    no GPU, or when `device` is the CPU, everything stays on `device`.
    """
    if device.type == "cpu" or not hardware.gpus:
        return {}
    room = _room(model, budget, hardware)
    unsplit = list(getattr(model, "_no_split_modules", None) or [])
    limits: dict[int | str, int] = {**room, "cpu": 1 << 62}
    placed = infer_auto_device_map(model, max_memory=limits, no_split_module_classes=unsplit)
    seeds = {path: torch.device("cpu" if where == "cpu" else f"cuda:{where}") for path, where in placed.items()}
    return {path: where for path, where in seeds.items() if where != device}


def _room(model: nn.Module, budget: Budget, hardware: Hardware) -> dict[int | str, int]:
    """Bytes for weights on each GPU: what is free, within the budget, less KV, workspace and a reserve."""
    dtype = model_dtype(model)
    other = (kv_token_bytes(model, dtype) or 0) * context_length(model, None) + workspace_bytes(model, dtype)
    left = budget.vram_bytes if budget.vram_bytes is not None else sum(gpu.free_bytes for gpu in hardware.gpus)
    room: dict[int | str, int] = {}
    for number, gpu in enumerate(hardware.gpus):
        share = min(gpu.free_bytes - RESERVE_BYTES, left)
        room[gpu.index] = max(0, share - (other if number == 0 else 0))
        left = max(0, left - share)
    return room
