"""Fills the modules that stay stock: their parameters, their buffers, and what no checkpoint holds."""

from __future__ import annotations

import torch
from torch import nn

from ktitan.errors import WeightError
from ktitan.inject.journal import Journal
from ktitan.weights.module_weights import BoundWeights

__all__ = ["fill_module", "fill_temporary_buffers", "stock_dtypes"]


def stock_dtypes(module: nn.Module, own_only: bool) -> dict[str, torch.dtype]:
    """Dtype of each parameter and persistent buffer by relative name; `own_only` leaves children out."""
    state = module.state_dict(keep_vars=True)
    return {name: tensor.dtype for name, tensor in state.items() if not own_only or "." not in name}


def fill_module(module: nn.Module, weights: BoundWeights, device: torch.device, journal: Journal) -> None:
    """Load a kept module's own tensors in their stock dtypes; tensors that are real and in place stay."""
    for name in weights.names():
        current = module._parameters.get(name, module._buffers.get(name))
        if current is not None and current.device == device:
            continue
        loaded = current.to(device) if current is not None and not current.is_meta else None
        tensor = loaded if loaded is not None else weights.tensor(name, device=device)
        if name in module._parameters:
            journal.set_parameter(module, name, tensor)
        else:
            journal.set_buffer(module, name, tensor)


def fill_temporary_buffers(model: nn.Module, device_of: dict[int, torch.device], journal: Journal) -> None:
    """Compute the buffers that are not in checkpoints (rotary frequencies), as transformers' own loader does.

    Runs before parameters are loaded: the model's initialiser also sets parameters, which does nothing on meta.

    Args:
        model: the injected model.
        device_of: compute device by `id(module)`.
        journal: records the edits.

    Raises:
        WeightError: a buffer's module does not know how to compute it.
    """
    for path, module in model.named_modules():
        names = [n for n in module._non_persistent_buffers_set if _is_meta(module._buffers.get(n))]
        if not names:
            continue
        device = device_of.get(id(module), torch.device("cpu"))
        for name in names:
            journal.set_buffer(module, name, _unset_like(module._buffers[name], device))
        _initialize(model, module)
        unset = [name for name in names if _is_unset(module._buffers[name])]
        if unset:
            raise WeightError(
                f"{type(module).__name__}: no checkpoint holds and no code computes {', '.join(unset)}",
                path,
                "build the model outside torch.device('meta') for this module",
            )


def _initialize(model: nn.Module, module: nn.Module) -> None:
    initialize = getattr(model, "_init_weights", None)
    if initialize is not None:
        with torch.no_grad():
            initialize(module)


def _unset_like(buffer: torch.Tensor | None, device: torch.device) -> torch.Tensor:
    """A real buffer of a value that no initialiser leaves behind."""
    made = torch.empty_like(buffer, device=device)  # type: ignore[arg-type]
    if made.dtype is torch.bool:
        return made.zero_()
    return made.fill_(torch.nan if made.is_floating_point() or made.is_complex() else torch.iinfo(made.dtype).min)


def _is_unset(buffer: torch.Tensor | None) -> bool:
    if buffer is None or buffer.dtype is torch.bool:
        return False
    if buffer.is_floating_point() or buffer.is_complex():
        return bool(buffer.isnan().any())
    return bool((buffer == torch.iinfo(buffer.dtype).min).any())


def _is_meta(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and tensor.is_meta
