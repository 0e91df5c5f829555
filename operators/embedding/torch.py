"""`embedding.torch`: the token table, with the output scale that the Gemma and BART families put on it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ktitan.errors import UnsupportedError
from ktitan.operator import ModuleWeights, Operator, OperatorConfig, OperatorContext
from ktitan.operators.stock import (
    PROBE_FAULTS,
    altered_reason,
    fill_parameters,
    mirror_parameters,
    packed_reason,
    plain_attributes,
    probing,
    shell_of,
    surplus_reason,
)
from ktitan.registry import register_operator

__all__ = ["TorchEmbedding", "embedding_scale"]

_PROBE_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@register_operator("embedding.torch")
class TorchEmbedding(Operator):
    """Rows of W [V, H]; ids [...] int64 -> [..., H], times `scale` (in W's dtype) where the stock class does."""

    weight: torch.Tensor

    def __init__(self, module: Any, config: OperatorConfig, context: OperatorContext) -> None:
        super().__init__()
        self.path = context.path
        self.load_device = context.device
        self.num_embeddings = int(module.num_embeddings)
        self.embedding_dim = int(module.embedding_dim)
        self.padding_idx = module.padding_idx
        self.scale = embedding_scale(module)
        mirror_parameters(self, module)

    @classmethod
    def supports(cls, context: OperatorContext, config: OperatorConfig) -> str | None:
        """`nn.Embedding`, or a subclass that only multiplies its rows by a constant; the latter is tried on numbers."""
        module = context.module
        if not isinstance(module, nn.Embedding):
            return "it is not an nn.Embedding"
        if module.max_norm is not None:
            return "max_norm rescales its rows at every call"
        reason = altered_reason(module) or surplus_reason(module, {"weight"}, {"embed_scale"}) or packed_reason(module)
        if reason is None and type(module).forward is not nn.Embedding.forward:
            reason = _scaled_reason(module)
        return reason

    @classmethod
    def from_module(cls, module: nn.Module, config: OperatorConfig, context: OperatorContext) -> TorchEmbedding:
        """Shapes and scale from `module`; the table stays on meta until `load`."""
        return cls(module, config, context)

    def load(self, weights: ModuleWeights) -> None:
        """Take `weight`."""
        fill_parameters(self, weights, self.load_device, self.path)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """[...] int64 -> [..., H]."""
        return _look_up(input, self.weight, self.scale)

    def extra_repr(self) -> str:
        """Sizes, as nn.Embedding prints them."""
        return f"{self.num_embeddings}, {self.embedding_dim}, scale={self.scale}"


def _look_up(ids: torch.Tensor, weight: torch.Tensor, scale: float | None) -> torch.Tensor:
    rows = functional.embedding(ids, weight)
    return rows if scale is None else rows * torch.tensor(scale, dtype=weight.dtype, device=weight.device)


def embedding_scale(module: nn.Module) -> float | None:
    """The constant of a scaled subclass; the plain number stands in for a buffer that is still on meta.

    Raises:
        UnsupportedError: a subclass keeps its scale where no number can be read.
    """
    if type(module).forward is nn.Embedding.forward:
        return None
    scale: Any = getattr(module, "embed_scale", None)
    if isinstance(scale, torch.Tensor) and scale.is_meta:
        scale = getattr(module, "scalar_embed_scale", None)
    if isinstance(scale, torch.Tensor | int | float):
        return float(scale)
    message = f"{type(module).__name__} has a forward of its own and no embed_scale to read"
    raise UnsupportedError(message, remedy='keep the stock module with "keep"')


@probing()
def _scaled_reason(module: nn.Module) -> str | None:
    """Run the stock forward on a small table of the same class; the reason when it is not `rows * scale`."""
    try:
        scale = embedding_scale(module)
    except UnsupportedError as error:
        return error.message
    ids = torch.tensor([[3, 0, 15], [7, 7, 1]])
    generator = torch.Generator().manual_seed(0)
    for dtype in _PROBE_DTYPES:
        shell = shell_of(type(module), plain_attributes(module))
        shell.weight = nn.Parameter(torch.randn(16, 24, generator=generator).to(dtype), requires_grad=False)
        if "embed_scale" in module._buffers:
            shell.register_buffer("embed_scale", torch.tensor(scale), persistent=False)
        try:
            expected = type(module).forward(shell, ids)
        except PROBE_FAULTS as error:
            return f"{type(module).__name__} could not be tried: {error}"
        actual = _look_up(ids, shell.weight, scale)
        if actual.dtype != expected.dtype or not torch.equal(actual, expected):
            return f"{type(module).__name__} does not compute rows times embed_scale in {dtype}"
    return None
