"""The router of a layer as a formula, believed only where it chooses what the stock block chooses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from ktitan.inject.decoder import expert_count, stock_block
from ktitan.operator import Operator, probing
from ktitan.shells import PROBE_FAULTS, Call, StandIn, float32_copy, shell_of
from ktitan.tiers.routing import Router, RouterForm

__all__ = ["read_router"]

_PROBE_TOKENS = 32
# Routers see normalised rows; a second size moves scores along the logistic function.
_PROBE_SIZES = (1.0, 3.0)
# transformers records what routers answer with hooks of this module; they change nothing.
_RECORDER = "transformers.utils.output_capturing"


def read_router(block: nn.Module, experts_name: str) -> Router | str:
    """The router among the children of `block`, or the reason why its choice cannot be foreseen.

    Args:
        block: the module around the experts.
        experts_name: of the experts among its children.
    """
    block = stock_block(block)
    experts = expert_count(block.get_submodule(experts_name))
    name = next((name for name, child in block.named_children() if _rows(child) == experts), None)
    if name is None or "." in experts_name:
        return "no router with a score for each expert stands beside its experts"
    router = block.get_submodule(name)
    hooks = [*router._forward_hooks.values(), *router._forward_pre_hooks.values()]
    if isinstance(block, Operator) or "forward" in {*vars(block), *vars(router)}:
        return "its forward was replaced"
    if any(getattr(hook, "__module__", "") != _RECORDER for hook in hooks):
        return "its router carries hooks"
    seen = _probe(block, name, router, experts_name)
    if isinstance(seen, str):
        return seen
    rows, chosen = seen
    for candidate in _candidates(block, router, chosen.shape[-1]):
        with probing():
            guess = candidate.choose(rows, chosen.shape[-1])
        # One pick in all may fall on a tie.
        if (guess.sort(-1).values != chosen.sort(-1).values).any(-1).sum() <= 1:
            return candidate
    return "its router chooses otherwise than by scores, corrections and groups"


def _rows(module: nn.Module) -> int:
    weight = module._parameters.get("weight")
    return len(weight) if weight is not None and weight.dim() == 2 and not weight.is_meta else 0


def _probe(
    block: nn.Module, name: str, router: nn.Module, experts_name: str
) -> tuple[torch.Tensor, torch.Tensor] | str:
    """Random rows [T, H], and what the stock block makes the experts compute for them [T, K]."""
    calls: list[Call] = []
    children: dict[str, nn.Module] = {
        other: StandIn(other, calls, torch.zeros_like) for other, _ in block.named_children()
    }
    width = router._parameters["weight"].shape[1]  # type: ignore[union-attr]
    with probing():
        generator = torch.Generator().manual_seed(0)
        rows = torch.cat([torch.randn((_PROBE_TOKENS, width), generator=generator) * size for size in _PROBE_SIZES])
        with suppress(*PROBE_FAULTS):  # the experts' call counts, if it came
            children[name] = float32_copy(router)
            type(block).forward(shell_of(block, children), rows[None])
    call = next((call for call in calls if call.name == experts_name), None)
    index = next((one for one in call.rest if not one.is_floating_point()), None) if call is not None else None
    if call is None or index is None or index.dim() != 2:
        return "its block does not hand rows and chosen experts to its experts"
    if call.given.shape != rows.shape or not torch.equal(call.given, rows):
        return "its experts compute from something else than what its router sees"
    return rows, index


def _candidates(block: nn.Module, router: Any, chosen: int) -> Iterator[Router]:
    """What its attributes and tensors allow: which of them it is, the probe tells."""
    weight = router.weight.detach()
    experts = len(weight)
    bias = _vector(router._parameters.get("bias"), experts)
    corrections = [
        tensor for module in (router, block) for tensor in _corrections(module, experts) if bool(tensor.any())
    ]
    groups = int(getattr(router, "num_group", None) or getattr(router, "n_group", None) or 1)
    kept = int(getattr(router, "topk_group", None) or 1)
    forms = [(1, 1, 1)]
    if groups > 1 and experts % groups == 0 and kept <= groups:
        forms = [*((groups, kept, best) for best in (1, 2) if best <= experts // groups), *forms]
    for sigmoid in (False, True):
        for form in forms:
            for correction in (*corrections[:1], None):
                yield Router(weight, RouterForm(chosen, sigmoid, *form), bias, correction)


def _corrections(module: nn.Module, experts: int) -> Iterator[torch.Tensor]:
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name, tensor in named.items():
        if "correction" in name and tensor.numel() == experts:
            yield _vector(tensor, experts)  # type: ignore[misc]


def _vector(tensor: torch.Tensor | None, size: int) -> torch.Tensor | None:
    if tensor is None or tensor.numel() != size:
        return None
    return tensor.detach().to("cpu", torch.float32).reshape(-1).contiguous().clone()
