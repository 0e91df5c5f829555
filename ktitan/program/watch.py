"""Tells whether a model still is what a program was made of."""

from __future__ import annotations

from typing import Any

from torch import nn

__all__ = ["Watch"]


class Watch:
    """Modules, their hooks and replaced forwards of a model, as they are now."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._seen = _state(model)

    def is_unchanged(self) -> bool:
        """Whether all of it is as it was."""
        return _state(self._model) == self._seen


def _state(model: nn.Module) -> list[tuple[Any, ...]]:
    return [
        (
            path,
            id(module),
            module.training,
            "forward" in vars(module),
            *module._forward_pre_hooks,
            None,
            *module._forward_hooks,
        )
        for path, module in model.named_modules(remove_duplicate=False)
    ]
