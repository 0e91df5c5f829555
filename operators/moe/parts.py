"""What a stock block around routed experts is made of; nothing here knows a family.

Shape letters: T tokens, H hidden, E experts, K experts of a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ktitan.native.routing import Router, matrix_over
from ktitan.operators.stock import altered_reason, surplus_reason

__all__ = ["BlockParts", "RouterForm", "read_parts", "router_of"]


@dataclass(frozen=True)
class BlockParts:
    """Names of the children.

    Attributes:
        experts: the routed experts.
        router: a score for each expert.
        shared: an MLP that computes every token, or None.
        shared_gate: a linear layer H -> 1 whose sigmoid the shared one is multiplied with, or None.
        hidden: H.
        correction: name of the router's correction [E], or None.
    """

    experts: str
    router: str
    shared: str | None
    shared_gate: str | None
    hidden: int
    correction: str | None


@dataclass(frozen=True)
class RouterForm:
    """How the block goes from logits to experts and weights: `ktitan.native.routing.Router` without its tensors."""

    chosen: int
    scores: str
    groups: int = 1
    groups_kept: int = 1
    group_best: int = 1
    normalise: bool = False
    scaling: float = 1.0
    corrected: bool = False


def read_parts(block: nn.Module) -> BlockParts | str:
    """The parts of a stock block, or the reason why it has others."""
    names = {name for name, _ in block.named_children()}
    reason = altered_reason(block) or surplus_reason(block, set(), children=names)
    if reason is not None:
        return reason
    experts = next((name for name, child in block.named_children() if _count(child)), None)
    if experts is None:
        return "no routed experts stand in it"
    count = _count(block.get_submodule(experts))
    router = next((name for name, child in block.named_children() if _rows(child) == count), None)
    if router is None:
        return "no router with a row for each expert stands beside its experts"
    correction = _correction(block.get_submodule(router), count)
    reason = _router_reason(block.get_submodule(router), correction)
    if reason is not None:
        return f"its router: {reason}"
    rest = [name for name, child in block.named_children() if name not in (experts, router) and child.state_dict()]
    gates = [name for name in rest if _rows(block.get_submodule(name)) == 1]
    shared = [name for name in rest if name not in gates]
    if len(shared) > 1 or len(gates) > len(shared):
        return f"it has more than one shared expert and its gate: {', '.join(rest)}"
    hidden = int(block.get_submodule(router)._parameters["weight"].shape[1])  # type: ignore[union-attr]
    shared_one, gate = (one[0] if one else None for one in (shared, gates))
    return BlockParts(experts, router, shared_one, gate, hidden, correction)


def router_of(module: Any, parts: BlockParts, form: RouterForm) -> Router | None:
    """The form over the tensors of the router `module`, without a copy; None where native code cannot read them."""
    vectors = [module._parameters.get("bias"), _tensor(module, parts.correction) if form.corrected else None]
    tensors = [module._parameters.get("weight"), *vectors]
    if any(one is not None and not _is_readable(one) for one in tensors) or tensors[0] is None:
        return None
    bias, correction = (None if one is None else one.detach().reshape(-1) for one in vectors)
    return Router(
        matrix_over(tensors[0]),
        bias,
        correction,
        form.chosen,
        form.scores,
        form.groups,
        form.groups_kept,
        form.group_best,
        form.normalise,
        form.scaling,
    )


def _count(module: nn.Module) -> int:
    """E, when `module` is the routed experts of a layer; else 0."""
    count = getattr(module, "num_experts", None)
    stacked = [one for one in module._parameters.values() if one is not None and one.dim() == 3]
    return count if isinstance(count, int) and any(len(one) == count for one in stacked) else 0


def _rows(module: nn.Module) -> int:
    weight = module._parameters.get("weight")
    return len(weight) if weight is not None and weight.dim() == 2 else 0


def _correction(router: nn.Module, count: int) -> str | None:
    tensors = {**router._parameters, **router._buffers}
    found = (name for name, one in tensors.items() if "correction" in name and one is not None and one.numel() == count)
    return next(found, None)


def _router_reason(router: nn.Module, correction: str | None) -> str | None:
    known = {"weight", "bias", *(() if correction is None else (correction,))}
    return altered_reason(router) or surplus_reason(router, known, known)


def _tensor(module: nn.Module, name: str | None) -> torch.Tensor | None:
    return None if name is None else {**module._parameters, **module._buffers}.get(name)


def _is_readable(tensor: torch.Tensor) -> bool:
    return tensor.is_cpu and tensor.dtype is torch.float32 and tensor.is_contiguous()
