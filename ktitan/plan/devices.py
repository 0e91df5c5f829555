"""Devices and the tiers they compute from."""

from __future__ import annotations

import torch

__all__ = ["device_tier"]


def device_tier(device: torch.device) -> str:
    """The tier that a device computes from without help."""
    return "ram" if device.type == "cpu" else "vram"
