"""Finds the rotary functions that a stock attention class uses, by what its forward names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ktitan.operators.stock import PROBE_FAULTS

__all__ = ["Rotation", "embed_positions", "find_rotation", "namespace_of"]


@dataclass(frozen=True)
class Rotation:
    """The function that turns queries and keys of one stock class by their positions.

    It is looked up by name at each call, so that operators can be pickled and copied.

    Attributes:
        stock: the attention class whose source file defines the function.
        name: the function's name there.
        takes_pair: position embeddings are (cos, sin); otherwise one complex tensor.
    """

    stock: type[nn.Module]
    name: str
    takes_pair: bool

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, position_embeddings: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """query [B, H, T, D] and key [B, Hk, T, D], rotated."""
        rotate: Callable[..., Any] = namespace_of(self.stock)[self.name]
        if self.takes_pair:
            cos, sin = position_embeddings
            return rotate(query, key, cos, sin)
        return rotate(query, key, position_embeddings.to(query.device))


def namespace_of(stock: type[nn.Module]) -> dict[str, Any]:
    """Globals of the source file that the class's forward stands in."""
    return inspect.unwrap(stock.forward).__globals__


def find_rotation(module: nn.Module) -> Rotation | str:
    """The rotation that the stock forward calls, or the reason why there is none that is known.

    DeepSeek-V3 chooses between two functions by `config.rope_interleave`; DeepSeek-V2 multiplies complex numbers.
    """
    stock = type(module)
    code = getattr(inspect.unwrap(stock.forward), "__code__", None)
    used = set(code.co_names) if code is not None else set()
    interleaves = getattr(module.config, "rope_interleave", "apply_rotary_pos_emb" not in used)
    if "apply_rotary_pos_emb_interleave" in used and interleaves:
        return Rotation(stock, "apply_rotary_pos_emb_interleave", takes_pair=True)
    if "apply_rotary_pos_emb" in used:
        return Rotation(stock, "apply_rotary_pos_emb", takes_pair=True)
    if "apply_rotary_emb" in used:
        return Rotation(stock, "apply_rotary_emb", takes_pair=False)
    return f"{stock.__name__} calls no rotary function that is known"


def embed_positions(module: nn.Module, hidden: torch.Tensor, positions: torch.Tensor) -> Any | None:
    """Position embeddings for a probe: hidden [B, T, H], positions [B, T] -> what the model hands its attention.

    They are made by the rotary class that stands beside the attention class (XAttention: XRotaryEmbedding); None when
    there is no such class, or it cannot be built from the config alone.
    """
    name = type(module).__name__.removesuffix("Attention") + "RotaryEmbedding"
    kind = namespace_of(type(module)).get(name)
    if kind is None:
        return None
    try:
        with torch.device("cpu"):
            rotary = kind(config=module.config)
        extra = {"layer_type": module.layer_type} if "layer_type" in _parameters(kind) else {}
        return rotary.to(hidden.device)(hidden, positions, **extra)
    except PROBE_FAULTS:
        return None


def _parameters(kind: type[nn.Module]) -> set[str]:
    return set(inspect.signature(kind.forward).parameters)
