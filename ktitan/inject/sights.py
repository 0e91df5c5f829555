"""Which layer's experts can be foreseen from where: found by the structure of the module tree, and tried out.

The router of a layer with experts is looked at from the input of the MLP before it (csrc/tiers/predict.h). That input
is normalised, x / rms(x) * w, so the next layer's norm of the same x is that input times the ratio of both weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import nn

from ktitan.native.predict import Predictor

__all__ = ["Blind", "Sight", "find_sights"]

# Norms before the MLP by the names that transformers gives them, the most telling first.
NORMS = (
    "pre_feedforward_layernorm",
    "pre_mlp_layernorm",
    "post_attention_layernorm",
    "ffn_norm",
    "mlp_norm",
    "norm2",
    "ln_2",
)
# Names of the attributes that limit a choice to groups; on the router, its block or the config.
GROUPS, GROUPS_KEPT = ("n_group", "num_expert_group"), ("topk_group", "num_limited_group")
CORRECTIONS = ("e_score_correction_bias", "expert_bias", "moe_statics.e_score_correction_bias")
PROBES = 32
# Of the slots of the probes, so many must be as the stock router has them: rounding turns a near-tie now and then.
AGREEMENT = 0.98
_FLAT = 1e-6


@dataclass(frozen=True)
class Sight:
    """The experts of `layer` as foreseen from the MLP of `source_layer`.

    Attributes:
        source: the MLP or block of experts whose input is looked at.
        block: the block whose experts are foreseen.
        predictor: None where a table says the experts of a token.
        table: [V, K] experts by token id, or None.
    """

    source_layer: int
    layer: int
    source: nn.Module
    block: nn.Module
    predictor: Predictor | None
    table: torch.Tensor | None = None


@dataclass(frozen=True)
class Blind:
    """A layer whose experts cannot be foreseen, and why."""

    layer: int
    why: str
    block: nn.Module


@dataclass(frozen=True)
class _Layer:
    """A decoder layer with an MLP; `experts` is None in a dense one."""

    number: int
    module: nn.Module
    mlp: nn.Module
    experts: nn.Module | None


class _Seen(Exception):
    """Ends a probe once the router has chosen."""


def find_sights(model: nn.Module) -> tuple[list[Sight], list[Blind]]:
    """Every layer with experts: from where it can be foreseen, or why not."""
    layers = list(_layers(model))
    sights: list[Sight] = []
    blind: list[Blind] = []
    for before, layer in zip([None, *layers], layers, strict=False):
        if layer.experts is None:
            continue
        found = _look(before, layer, model)
        if isinstance(found, str):
            blind.append(Blind(layer.number, found, layer.mlp))
        else:
            sights.append(found)
    return sights, blind


def _layers(model: nn.Module) -> Iterator[_Layer]:
    """The decoder layers: of the lists of modules below whose members are modules called `experts`, the longest."""
    names = [name for name, _ in model.named_modules() if name.rpartition(".")[2] == "experts"]
    lists = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    holders = [name for name in lists if any(one.startswith(f"{name}.") for one in names)]
    if not holders:
        return
    holder = max(holders, key=lambda name: len(lists[name]))
    children = {one[len(holder) + 1 :].split(".")[1] for one in names if one.startswith(f"{holder}.")}
    for number, module in enumerate(lists[holder]):
        mlp = next((child for name, child in module.named_children() if name in children), None)
        if mlp is not None:
            yield _Layer(number, module, mlp, getattr(mlp, "experts", None))


def _look(before: _Layer | None, layer: _Layer, model: nn.Module) -> Sight | str:
    table = _table(layer.mlp)
    if table is not None:
        return Sight(layer.number, layer.number, layer.mlp, layer.mlp, None, table)
    if before is None or before.number != layer.number - 1:
        return "there is no layer before it"
    norms = [_norm(one.module) for one in (before, layer)]
    if norms[0] is None or norms[1] is None:
        return "no norm is known before its MLP, or the one before it"
    own = _own_predictor(layer, model)
    if isinstance(own, str):
        return own
    scale = _ratio(norms[0], norms[1], own.hidden, own.router.dtype)
    if scale is None:
        return "the norms of both layers differ by more than a factor for each number"
    return Sight(before.number, layer.number, before.mlp, layer.mlp, replace(own, scale=scale))


def _table(block: nn.Module) -> torch.Tensor | None:
    """Experts by token id, where the router has such a table (DeepSeek-V4's hash routing)."""
    for child in block.children():
        for name, tensor in child.named_buffers(recurse=False):
            if name == "tid2eid" and tensor.dim() == 2 and not tensor.is_floating_point():
                return tensor.to("cpu", torch.int64)
    return None


def _norm(layer: nn.Module) -> nn.Module | None:
    children = dict(layer.named_children())
    return next((children[name] for name in NORMS if name in children), None)


@torch.no_grad()
def _ratio(norm: nn.Module, following: nn.Module, hidden: int, dtype: torch.dtype) -> torch.Tensor | None:
    """following(x) / norm(x) [H], where that is the same for every x; float32."""
    parameter = next(norm.parameters(), None)
    kind = torch.float32 if parameter is None else parameter.dtype
    device = torch.device("cpu") if parameter is None else parameter.device
    probes = torch.randn(4, hidden, generator=torch.Generator().manual_seed(0)).to(device, kind)
    one, other = norm(probes).float().cpu(), following(probes).float().cpu()
    if one.shape != other.shape or not torch.isfinite(one).all() or not torch.isfinite(other).all():
        return None
    # The largest number of each column, since small ones are rounded.
    at = one.abs().argmax(0, keepdim=True)
    seen, wanted = one.gather(0, at)[0], other.gather(0, at)[0]
    flat = seen.abs() < _FLAT
    scale = torch.where(flat, 0.0, wanted / torch.where(flat, 1.0, seen))
    error = (one * scale - other).abs().mean() / other.abs().mean().clamp_min(_FLAT)
    return scale.contiguous() if float(error) < 0.02 else None


def _own_predictor(layer: _Layer, model: nn.Module) -> Predictor | str:
    """The layer's router as a predictor from its own input, which makes the choices that the stock router makes."""
    count = getattr(layer.experts, "num_experts", None) or _config(model, "n_routed_experts", "num_local_experts")
    router = _router(layer.mlp, count)
    if router is None:
        return "its router has no weight of [experts, hidden] on the CPU"
    weight, bias = router
    probes = torch.randn(PROBES, weight.shape[1], generator=torch.Generator().manual_seed(1))
    try:
        chosen = _choices(layer, probes)
    except (RuntimeError, TypeError, ValueError) as error:
        return f"its router cannot be tried alone ({type(error).__name__})"
    if chosen is None:
        return "its router did not choose"
    for candidate in _candidates(layer.mlp, weight, bias, chosen.shape[1], model):
        if _agreement(candidate.reference(probes, candidate.chosen), chosen) >= AGREEMENT:
            return candidate
    return "its router chooses in a way that is not known"


def _router(block: nn.Module, experts: int | None) -> tuple[torch.Tensor, torch.Tensor | None] | None:
    """Weight [E, H] and bias [E] of the router in a block of experts."""
    for name, module in block.named_modules():
        weight = getattr(module, "weight", None)
        if not isinstance(weight, torch.Tensor) or weight.dim() != 2 or name.split(".")[0] == "experts":
            continue
        kind = weight.dtype in (torch.float32, torch.bfloat16, torch.float16)
        if kind and weight.device.type == "cpu" and experts in (None, weight.shape[0]) and "shared" not in name:
            bias = getattr(module, "bias", None)
            bias = bias.detach().float() if isinstance(bias, torch.Tensor) else None
            return weight.detach().contiguous(), bias
    return None


@contextmanager
def _stopped_at(experts: nn.Module, seen: list[torch.Tensor]) -> Iterator[None]:
    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append(kwargs["top_k_index"] if "top_k_index" in kwargs else args[1])
        raise _Seen

    handle = experts.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@torch.no_grad()
def _choices(layer: _Layer, probes: torch.Tensor) -> torch.Tensor | None:
    """What the stock router chooses for the probes [T, H]: [T, K]."""
    seen: list[torch.Tensor] = []
    parameter = next((one for one in layer.mlp.parameters() if one.is_floating_point()), probes)
    if layer.experts is None:
        return None
    with _stopped_at(layer.experts, seen):
        try:
            layer.mlp(probes.to(parameter.dtype)[None])
        except _Seen:
            return seen[0].cpu().reshape(len(probes), -1)
    return None


def _candidates(
    block: nn.Module, weight: torch.Tensor, bias: torch.Tensor | None, chosen: int, model: nn.Module
) -> Iterator[Predictor]:
    """What routers of transformers do, the plainest first."""
    corrections: list[torch.Tensor | None] = [None]
    for name, tensor in (*block.named_buffers(), *block.named_parameters()):
        if name.endswith(CORRECTIONS) and tensor.numel() == weight.shape[0]:
            corrections.insert(0, tensor.detach().float().reshape(-1).cpu().contiguous())
    groups = _attribute(block, model, GROUPS) or 1
    kept = _attribute(block, model, GROUPS_KEPT) or 1
    limits = [(1, 1, 1)]
    if groups > 1 and weight.shape[0] % groups == 0:
        limits = [(groups, kept, 2), (groups, kept, 1), *limits]
    for correction, sigmoid, (count, some, best) in product(corrections, (False, True), limits):
        yield Predictor(weight, chosen, None, bias, correction, sigmoid, count, some, best)


def _attribute(block: nn.Module, model: nn.Module, names: tuple[str, ...]) -> int | None:
    for owner in (*block.children(), block):
        for name in names:
            value = getattr(owner, name, None)
            if isinstance(value, int):
                return value
    return _config(model, *names)


def _config(model: nn.Module, *names: str) -> int | None:
    config: Any = getattr(model, "config", None)
    get: Callable[..., Any] | None = getattr(config, "get_text_config", None)
    text = get(decoder=True) if get is not None else config
    return next((value for name in names if isinstance(value := getattr(text, name, None), int)), None)


def _agreement(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Share of the wanted experts that were found, row by row."""
    return float((found[:, :, None] == wanted[:, None, :]).any(1).float().mean())
