"""Methods of the stock model that cannot work on an injected one: refused at the call, before they do half of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from ktitan.errors import UnsupportedError
from ktitan.inject.journal import Journal
from ktitan.operator import Operator

__all__ = ["refuse_methods"]

UNDO = "call model.ktitan.undo() first"


@dataclass(frozen=True)
class _Refusal:
    """Stands in for a method; a class, not a closure, so that an injected model can be pickled."""

    message: str
    where: str

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise UnsupportedError(self.message, self.where, UNDO)


def refuse_methods(model: nn.Module, journal: Journal) -> None:
    """Stand in for the methods that would fail half way: transformers writes config.json before it asks for weights,
    and looks for an `nn.Embedding` deep inside a resize.
    """
    kind = type(model).__name__
    operators = [module for module in model.modules() if isinstance(module, Operator)]
    # What an operator with children holds besides are copies: the tensors are all there.
    packed = any(module.held() and not module.keeps_children for module in operators)
    if packed and hasattr(model, "save_pretrained"):
        message = "packed weights cannot be written as tensors"
        journal.shadow(model, "save_pretrained", _Refusal(message, f"{kind}.save_pretrained"))
    table = _token_table(model)
    if isinstance(table, Operator):
        message = f"{table.operator_name} cannot be resized"
        journal.shadow(model, "resize_token_embeddings", _Refusal(message, f"{kind}.resize_token_embeddings"))


def _token_table(model: nn.Module) -> Any:
    try:
        return model.get_input_embeddings() if hasattr(model, "resize_token_embeddings") else None  # type: ignore[operator]
    except NotImplementedError:
        return None  # a class that does not say which module it is
