"""The catalogue of operators: importing this package registers each one under its name."""

from __future__ import annotations

from ktitan.operators.attention.torch import TorchAttention
from ktitan.operators.embedding import TorchEmbedding
from ktitan.operators.experts.torch import TorchExperts
from ktitan.operators.linear.torch import TorchLinear
from ktitan.operators.norm import TorchNorm

__all__ = ["TorchAttention", "TorchEmbedding", "TorchExperts", "TorchLinear", "TorchNorm"]
