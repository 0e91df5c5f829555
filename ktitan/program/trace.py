"""The forward of a whole model on stand-ins: how it calls its decoder layers, and what it hands them at each step."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from ktitan.errors import UnsupportedError
from ktitan.program.traced import Called, Tracing

__all__ = ["ModelTrace", "cache_options"]

_CACHE_KEYWORDS = ("cache", "past_key_values")  # the second before transformers 5.24


def cache_options(model: Any, first: int, tokens: int, cache: Any) -> dict[str, Any]:
    """What a model's forward gets beside the ids of `tokens` tokens from position `first` on."""
    takes = inspect.signature(model.forward).parameters
    keyword = next((name for name in _CACHE_KEYWORDS if name in takes), None)
    options: dict[str, Any] = {} if keyword is None else {keyword: cache, "use_cache": True}
    if "logits_to_keep" in takes:
        options["logits_to_keep"] = 1
    if "position_ids" in takes:
        options["position_ids"] = torch.arange(first, first + tokens)[None]
    return options


class ModelTrace:
    """Runs the model's own forward on stand-ins for embedding, layers, norm and head.

    Args:
        model: a causal model of transformers.

    Attributes:
        model: the same.
        number_of: the decoder layers' numbers, by path.

    Raises:
        UnsupportedError: it has no list of decoder layers.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        count = model.config.get_text_config(decoder=True).num_hidden_layers
        lists = [path for path, one in model.named_modules() if isinstance(one, nn.ModuleList) and len(one) == count]
        if not lists:
            raise UnsupportedError("it has no list of decoder layers", type(model).__name__, "run it as modules")
        self.number_of = {f"{lists[0]}.{number}": number for number in range(count)}
        parents = lists[0].split(".")[:-1]
        self._open = frozenset(".".join(parents[: depth + 1]) for depth in range(len(parents)))

    @property
    def around(self) -> list[nn.Module]:
        """The modules whose own forwards call the layers, the model first."""
        return [self.model, *(self.model.get_submodule(path) for path in sorted(self._open, key=len))]

    def run(self, ids: torch.Tensor, first: int, cache: Any, answer: Any = None) -> tuple[list[Called], torch.Tensor]:
        """The calls of a forward of ids [T] at positions from `first` on, and the logits made of the answers."""
        tracing = Tracing(answer or _nothing)
        shell: Any = tracing.shell(self.model, self._open)
        options = cache_options(self.model, first, len(ids), cache)
        with torch.no_grad():
            logits: torch.Tensor = shell(input_ids=ids[None], **options).logits
        return tracing.calls, logits

    def layer_calls(self, calls: list[Called]) -> dict[int, Called]:
        """How each layer is called, by its number."""
        return {self.number_of[call.path]: call for call in calls if call.path in self.number_of}


def _nothing(module: nn.Module, given: torch.Tensor) -> torch.Tensor:
    """Zeros [1, T, width] that take no memory."""
    width = getattr(module, "embedding_dim", given.shape[-1])
    return torch.zeros(()).expand(*given.shape[:2], width)
