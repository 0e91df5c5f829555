"""Fills the modules that stay stock: their parameters, their buffers, and what no checkpoint holds."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import nn

from ktitan.errors import WeightError
from ktitan.inject.journal import Journal
from ktitan.weights.module_weights import BoundWeights

__all__ = ["fill_module", "fill_temporary_buffers", "stock_dtypes"]


def stock_dtypes(model: nn.Module, path: str, module: nn.Module, own_only: bool) -> dict[str, torch.dtype]:
    """Dtype of each parameter and persistent buffer of the stock `module` at `path`, by relative name.

    Tensors that transformers keeps in float32 (router biases) are float32 even where the model was built in another
    dtype: before 5.24 a model built from a config alone does not say so itself. `own_only` leaves children out.
    """
    strict = _float32_patterns(model)
    state = module.state_dict(keep_vars=True)
    return {
        name: torch.float32
        if tensor.is_floating_point() and any(re.search(one, f"{path}.{name}") for one in strict)
        else tensor.dtype
        for name, tensor in state.items()
        if not own_only or "." not in name
    }


def _float32_patterns(model: nn.Module) -> list[str]:
    plan = getattr(model, "_get_dtype_plan", None)
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return list(plan(dtype)) if plan is not None else []


def fill_module(
    module: nn.Module, weights: BoundWeights, device: torch.device, journal: Journal, own_source: bool
) -> None:
    """Load a kept module's own tensors in their stock dtypes.

    Args:
        module: the stock module.
        weights: its tensors.
        device: where they go.
        journal: records the edits.
        own_source: the model is its own source, so that tensors in place stay. Otherwise real tensors are replaced like
            those on meta: whatever the model was filled with, its weights are to come from the source.
    """
    for name in weights.names():
        current = module._parameters.get(name, module._buffers.get(name))
        if own_source and current is not None and current.device == device:
            continue
        tensor = weights.tensor(name, device=device)
        if name in module._parameters:
            journal.set_parameter(module, name, tensor)
        else:
            journal.set_buffer(module, name, tensor)


def fill_temporary_buffers(model: nn.Module, devices: Mapping[str, torch.device], journal: Journal) -> None:
    """Compute the buffers that are not in checkpoints (rotary frequencies), as transformers' own loader does.

    Runs on the stock tree, so that modules that are about to be replaced are whole when `undo()` puts them back.

    Args:
        model: the stock model.
        devices: compute device by path; the CPU where there is none.
        journal: records the edits.

    Raises:
        WeightError: a buffer's module does not know how to compute it.
    """
    for path, module in model.named_modules():
        names = [n for n in module._non_persistent_buffers_set if _is_meta(module._buffers.get(n))]
        if not names:
            continue
        device = devices.get(path, torch.device("cpu"))
        for name in names:
            journal.set_buffer(module, name, _unset_like(module._buffers[name], device))
        _initialize(_enclosing_model(model, path), module)
        unset = [name for name in names if _is_unset(module._buffers[name])]
        if unset:
            raise WeightError(
                f"{type(module).__name__}: no checkpoint holds and no code computes {', '.join(unset)}",
                path,
                "build the model outside torch.device('meta') for this module",
            )


def _enclosing_model(model: nn.Module, path: str) -> nn.Module:
    """The innermost model around `path` that can initialise modules: a vision tower knows its own."""
    found = model
    pieces = path.split(".")
    for length in range(1, len(pieces)):
        part = model.get_submodule(".".join(pieces[:length]))
        found = part if hasattr(part, "_init_weights") else found
    return found


def _initialize(model: nn.Module, module: nn.Module) -> None:
    """Run the model's initialiser on `module` with its parameters hidden, so that only buffers are set."""
    initialize = getattr(model, "_init_weights", None)
    if initialize is None:
        return
    parameters = module._parameters
    module._parameters = {
        name: None if p is None else nn.Parameter(p.to("meta"), False) for name, p in parameters.items()
    }
    try:
        with torch.no_grad():
            initialize(module)
    finally:
        module._parameters = parameters


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
