"""`linear.torch`: the dense matrix product, and the twin that other linear operators are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional

from ktitan.formats.plain import plain_name
from ktitan.operator import MemoryNeed, ModuleWeights, Operator, OperatorConfig, OperatorContext
from ktitan.operators.stock import altered_reason, fill_parameters, mirror_parameters, packed_reason, surplus_reason
from ktitan.registry import register_operator

__all__ = ["TorchLinear", "TorchLinearConfig"]


@dataclass(frozen=True)
class TorchLinearConfig(OperatorConfig):
    """Kwargs of `linear.torch`.

    Attributes:
        dtype: store and compute in this dtype; None keeps the stock one. The output always has the input's dtype.
    """

    dtype: Literal["float32", "bfloat16", "float16"] | None = None


@register_operator("linear.torch")
class TorchLinear(Operator):
    """y = x W^T + b with W [N, H] and b [N] as dense tensors; x [..., H] -> y [..., N] in x's dtype."""

    Config = TorchLinearConfig
    weight: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, module: Any, config: TorchLinearConfig, context: OperatorContext) -> None:
        super().__init__()
        self.path = context.path
        self.load_device = context.device
        self.in_features = int(module.in_features)
        self.out_features = int(module.out_features)
        self.casts = config.dtype is not None
        mirror_parameters(self, module, _dtype(config))

    @classmethod
    def supports(cls, context: OperatorContext, config: TorchLinearConfig) -> str | None:
        """Only modules that compute exactly what `nn.Linear` does, with dense weights."""
        module = context.module
        if not isinstance(module, nn.Linear):
            return "it is not an nn.Linear"
        return (
            altered_reason(module, nn.Linear.forward)
            or surplus_reason(module, {"weight", "bias"})
            or packed_reason(module)
        )

    @classmethod
    def from_module(cls, module: nn.Module, config: TorchLinearConfig, context: OperatorContext) -> TorchLinear:
        """Shapes from `module`; tensors stay on meta until `load`."""
        return cls(module, config, context)

    def load(self, weights: ModuleWeights) -> None:
        """Take `weight`, and `bias` where the stock module has one."""
        fill_parameters(self, weights, self.load_device, self.path)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """[..., H] -> [..., N]."""
        if not self.casts:
            return functional.linear(input, self.weight, self.bias)
        return functional.linear(input.to(self.weight.dtype), self.weight, self.bias).to(input.dtype)

    def dense_weight(self) -> torch.Tensor | None:
        """W [N, H] when the whole operator is `x W^T` in the stock dtype, else None; absorbed attention asks for it."""
        return self.weight if self.bias is None and not self.casts else None

    @classmethod
    def memory(cls, context: OperatorContext, config: TorchLinearConfig) -> MemoryNeed:
        """The stock tensors, in the dtype that was asked for."""
        dtype = _dtype(config)
        if dtype is None:
            return super().memory(context, config)
        count = sum(tensor.numel() for tensor in context.module.parameters())
        return MemoryNeed(count * dtype.itemsize, plain_name(dtype), "torch")

    def extra_repr(self) -> str:
        """Sizes, as nn.Linear prints them."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def _dtype(config: TorchLinearConfig) -> torch.dtype | None:
    return getattr(torch, config.dtype) if config.dtype else None
