"""Edits of a model that can be taken back, in reverse order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

__all__ = ["Journal"]


class Journal:
    """Every change that ktitan makes to a user's model goes through here."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._undo: list[Callable[[], Any]] = []

    def replace(self, path: str, module: nn.Module) -> None:
        """Put `module` at `path`."""
        old = self.model.get_submodule(path)
        self.model.set_submodule(path, module)
        self._undo.append(lambda: self.model.set_submodule(path, old))

    def set_parameter(self, module: nn.Module, name: str, tensor: torch.Tensor) -> None:
        """Give a stock module a real, frozen parameter in place of the one it has."""
        old = module._parameters[name]
        module._parameters[name] = tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor, False)
        self._undo.append(lambda: module._parameters.__setitem__(name, old))

    def set_buffer(self, module: nn.Module, name: str, tensor: torch.Tensor) -> None:
        """Give a stock module a real buffer in place of the one it has."""
        old = module._buffers[name]
        module._buffers[name] = tensor
        self._undo.append(lambda: module._buffers.__setitem__(name, old))

    def set_attribute(self, owner: Any, name: str, value: Any) -> None:
        """Set a plain attribute of the model or of one of its configs."""
        had, old = hasattr(owner, name), getattr(owner, name, None)
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, old) if had else delattr(owner, name))

    def shadow(self, module: nn.Module, method: str, stand_in: Callable[..., Any]) -> None:
        """Let `stand_in` be called in place of a method of this one module."""
        module.__dict__[method] = stand_in
        self._undo.append(lambda: module.__dict__.pop(method, None))

    def set_training(self, training: bool) -> None:
        """Switch the whole model, keeping each module's own mode for the way back."""
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.train(training)

        def restore() -> None:
            for module, mode in modes:
                module.training = mode

        self._undo.append(restore)

    def on_roll_back(self, act: Callable[[], Any]) -> None:
        """Remember what else is to be done when changes are taken back, in its turn."""
        self._undo.append(act)

    def add_hook(self, handle: torch.utils.hooks.RemovableHandle) -> None:
        """Remember a hook that was registered."""
        self._undo.append(handle.remove)

    def roll_back(self) -> None:
        """Take every change back, the last one first."""
        while self._undo:
            self._undo.pop()()
