"""A model that already holds real tensors, as its own weight source."""

from __future__ import annotations

import torch
from torch import nn

from ktitan.formats.plain import plain_name
from ktitan.weights.expression import Expression, Held
from ktitan.weights.source import TensorInfo, WeightSource

__all__ = ["LiveSource"]

LIVE_PATH = "<model>"


class LiveSource(WeightSource):
    """References to the parameters and persistent buffers of a module; nothing is copied until it is read.

    Tied parameters appear under each of their names.
    """

    kind = "live"

    def __init__(self, model: nn.Module) -> None:
        super().__init__(LIVE_PATH)
        self._held = {
            name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if tensor.device.type != "meta"
        }
        self.tensors = {name: _info(name, tensor) for name, tensor in self._held.items()}

    def read_into(self, name: str, out: torch.Tensor, first_row: int = 0) -> None:
        """See `WeightSource.read_into`."""
        held = self._held[name].detach()
        rows = held.reshape(-1, held.shape[-1] if held.dim() else 1)
        flat = rows[first_row : first_row + out.numel() // max(1, rows.shape[1])]
        out.copy_(flat.view(out.shape))

    def bindings(self) -> dict[str, Expression]:
        """Each tensor under its own name."""
        return {name: Held(self, self.tensors[name], tensor.detach()) for name, tensor in self._held.items()}

    def close(self) -> None:
        """Drop the references, so that replaced tensors can be freed."""
        self._held = {}


def _info(name: str, tensor: torch.Tensor) -> TensorInfo:
    size = tensor.numel() * tensor.element_size()
    return TensorInfo(name, tuple(tensor.shape), plain_name(tensor.dtype), LIVE_PATH, 0, size)
