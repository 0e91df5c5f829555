"""The catalogue of operators: importing this package registers each one under its name."""

from __future__ import annotations

from ktitan.operators.attention.cpu import CpuAttention
from ktitan.operators.attention.torch import TorchAttention
from ktitan.operators.embedding.cpu import CpuEmbedding
from ktitan.operators.embedding.streamed import StreamedEmbedding
from ktitan.operators.embedding.torch import TorchEmbedding
from ktitan.operators.experts.cpu import CpuExperts
from ktitan.operators.experts.streamed import StreamedExperts
from ktitan.operators.experts.torch import TorchExperts
from ktitan.operators.linear.cpu import CpuLinear
from ktitan.operators.linear.streamed import StreamedLinear
from ktitan.operators.linear.torch import TorchLinear
from ktitan.operators.mlp.cpu import CpuMlp
from ktitan.operators.moe.cpu import CpuMoe
from ktitan.operators.norm import TorchNorm
from ktitan.operators.norm_cpu import CpuNorm

__all__ = [
    "CpuAttention",
    "CpuEmbedding",
    "CpuExperts",
    "CpuLinear",
    "CpuMlp",
    "CpuMoe",
    "CpuNorm",
    "StreamedEmbedding",
    "StreamedExperts",
    "StreamedLinear",
    "TorchAttention",
    "TorchEmbedding",
    "TorchExperts",
    "TorchLinear",
    "TorchNorm",
]
