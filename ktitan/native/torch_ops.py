"""Entries in `torch.library`, so that compiled graphs hold the CPU operators as opaque calls with known shapes.

A graph cannot hold a packed matrix; it holds a number under which the living one is found.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

import torch

from ktitan.errors import UnsupportedError

__all__ = ["handle_of"]

_living: WeakValueDictionary[int, Any] = WeakValueDictionary()


@torch.compiler.assume_constant_result
def handle_of(weights: Any) -> int:
    """A number for a packed matrix or expert bank, good as long as it lives."""
    _living[id(weights)] = weights
    return id(weights)


def _weights(handle: int) -> Any:
    found = _living.get(handle)
    if found is None:
        raise UnsupportedError(
            "a compiled graph outlived its weights", "torch.compile", "compile again after loading or undo()"
        )
    return found


@torch.library.custom_op("ktitan::linear_cpu", mutates_args=())
def _linear(x: torch.Tensor, handle: int, bias: torch.Tensor | None, activations: str) -> torch.Tensor:
    from ktitan.native.calls import linear
    from ktitan.native.streams import StreamMatrix, stream_linear

    weight = _weights(handle)
    call: Any = stream_linear if isinstance(weight, StreamMatrix) else linear
    return call(x, weight, bias, activations)


@_linear.register_fake
def _(x: torch.Tensor, handle: int, bias: torch.Tensor | None, activations: str) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], _weights(handle).rows))


@torch.library.custom_op("ktitan::experts_cpu", mutates_args=())
def _experts(
    hidden: torch.Tensor, index: torch.Tensor, weights: torch.Tensor, handle: int, activations: str
) -> torch.Tensor:
    from ktitan.native.calls import experts
    from ktitan.native.streams import StreamBank, stream_experts

    bank = _weights(handle)
    call: Any = stream_experts if isinstance(bank, StreamBank) else experts
    return call(hidden, index, weights, bank, activations)


@_experts.register_fake
def _(hidden: torch.Tensor, index: torch.Tensor, weights: torch.Tensor, handle: int, activations: str) -> torch.Tensor:
    return torch.empty_like(hidden, memory_format=torch.contiguous_format)


@torch.library.custom_op("ktitan::embedding_cpu", mutates_args=())
def _embedding(ids: torch.Tensor, handle: int) -> torch.Tensor:
    from ktitan.native.calls import embedding
    from ktitan.native.streams import StreamTable, stream_rows

    table = _weights(handle)
    call: Any = stream_rows if isinstance(table, StreamTable) else embedding
    return call(ids, table, torch.float32)


@_embedding.register_fake
def _(ids: torch.Tensor, handle: int) -> torch.Tensor:
    return ids.new_empty((*ids.shape, _weights(handle).columns), dtype=torch.float32)
