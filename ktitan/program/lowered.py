"""Which modules have a form in a program that does what a call of them does."""

from __future__ import annotations

from typing import Any

from torch import nn

from ktitan.operator import Operator

__all__ = ["hook_reason", "lowered_hooks", "refusal"]


def refusal(module: nn.Module) -> str | None:
    """Why a module must be called, or None where its `lower` stands for it."""
    if not isinstance(module, Operator):
        return f"{type(module).__name__} is no operator"
    if not _has_own_lower(type(module)):
        return f"{module.operator_name or type(module).__name__} has no form in a program"
    return hook_reason(module)


def hook_reason(module: nn.Module) -> str | None:
    """Why the calls of a module cannot be left out, or None; hooks before it may have a form of their own."""
    if "forward" in vars(module):
        return "its forward was replaced"
    if module._forward_hooks or any(_lowering(hook) is None for hook in module._forward_pre_hooks.values()):
        return "a hook on it must see its calls"
    return "it is in training mode" if module.training else None


def lowered_hooks(module: nn.Module) -> list[Any]:
    """What hangs on a module and is lowered before it."""
    hooks = [_lowering(hook) for hook in module._forward_pre_hooks.values()]
    return [hook for hook in hooks if hook is not None]


def _lowering(hook: Any) -> Any:
    """The object with the `lower` of a hook, which may be one of its methods."""
    for one in (hook, getattr(hook, "__self__", None)):
        if callable(getattr(one, "lower", None)) and not isinstance(one, nn.Module):
            return one
    return None


def _has_own_lower(kind: type[Operator]) -> bool:
    """Whether `lower` was written for the `forward` that counts: in the same class, or in one that extends it."""
    order = kind.__mro__
    forward = next(at for at, one in enumerate(order) if "forward" in vars(one))
    lower = next(at for at, one in enumerate(order) if "lower" in vars(one))
    return order[lower] is not Operator and lower <= forward
