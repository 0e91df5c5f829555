"""Products with weights that come from a store: what streamed operators call."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["stream_experts", "stream_linear", "stream_rows"]


def stream_experts(
    hidden: torch.Tensor, index: torch.Tensor, weights: torch.Tensor, bank: Any, activations: str
) -> torch.Tensor:
    """`ktitan.native.experts` with what `TierStore.add_experts` returned: the same bits.

    Raises:
        IoError: a record cannot be read; the store stays usable.
        UnsupportedError: as `experts`, or the store is closed.
    """
    raise NotImplementedError


def stream_linear(x: torch.Tensor, matrix: Any, bias: torch.Tensor | None, activations: str) -> torch.Tensor:
    """`ktitan.native.linear` with what `TierStore.add_matrix` returned."""
    raise NotImplementedError


def stream_rows(ids: torch.Tensor, table: Any, dtype: torch.dtype) -> torch.Tensor:
    """`ktitan.native.embedding` with what `TierStore.add_table` returned."""
    raise NotImplementedError
