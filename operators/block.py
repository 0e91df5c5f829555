"""What operators share that keep a stock block's children and compute what stands between them on the CPU."""

from __future__ import annotations

from torch import nn

from ktitan.native import backend
from ktitan.operator import MemoryNeed, ModuleWeights, Operator, OperatorConfig, OperatorContext
from ktitan.operators.stock import plain_attributes, shell_of

__all__ = ["KeptBlock"]


class KeptBlock(Operator):
    """Base of operators without tensors: the stock children stay below them and are called as modules.

    Calls that cannot be native (`ktitan.operators.float32`) go through the stock forward on the same children.
    """

    keeps_children = True
    homes = ("nvme",)  # it has no weights, so that a home which it inherits does not matter

    def __init__(self, module: nn.Module, context: OperatorContext) -> None:
        super().__init__()
        attributes = plain_attributes(module)
        for name, value in attributes.items():
            setattr(self, name, value)
        self.stock = type(module)
        self.stock_names = tuple(attributes)
        self.path = context.path
        for name, child in module._modules.items():
            self.register_module(name, child)

    def load(self, weights: ModuleWeights) -> None:
        """Nothing: children are loaded on their own."""

    def stock_twin(self) -> nn.Module:
        """An instance of the stock class that shares this operator's children and attributes."""
        twin = shell_of(self.stock, {name: getattr(self, name) for name in self.stock_names})
        twin._modules = self._modules
        return twin

    @classmethod
    def memory(cls, context: OperatorContext, config: OperatorConfig) -> MemoryNeed:
        """No weights of its own."""
        return MemoryNeed(0, "-", f"{backend().name} f32")
