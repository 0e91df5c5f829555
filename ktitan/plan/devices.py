"""Devices and the tiers they compute from."""

from __future__ import annotations

import torch

from ktitan.errors import HardwareError

__all__ = ["device_tier", "whole_name"]


def device_tier(device: torch.device) -> str:
    """The tier that a device computes from without help."""
    return "ram" if device.type == "cpu" else "vram"


def whole_name(device: str | torch.device) -> str:
    """A device's one name: "cuda" is "cuda:0", "cpu:0" is "cpu".

    Raises:
        HardwareError: torch knows no such device.
    """
    try:
        parsed = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise HardwareError(f"{device!r} is not a device", "device", 'write "cpu" or "cuda:0"') from error
    if parsed.type == "cpu":
        return "cpu"
    return f"{parsed.type}:{parsed.index or 0}"
