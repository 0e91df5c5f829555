"""Decoder layers by structure: which norm feeds the MLP, which child routes, where the experts are.

Nothing here knows a family. What a layer does is seen by running its stock forward with stand-ins for its children.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ktitan.inject.phases import PhaseSwitch
from ktitan.operator import Operator, probing
from ktitan.shells import PROBE_FAULTS, Call, StandIn, shell_of

__all__ = ["DecoderLayer", "Feed", "decoder_layers", "expert_count", "read_feed", "stock_block"]

_EPS_NAMES = ("variance_epsilon", "eps", "epsilon", "norm_eps")
_PROBE_TOKENS = 4


@dataclass(frozen=True)
class DecoderLayer:
    """A layer of the decoder.

    Attributes:
        number: its place in the list of layers.
        module: the layer.
        path: of the layer.
        experts: path of its routed experts; None where it has none.
    """

    number: int
    module: nn.Module
    path: str
    experts: str | None

    @property
    def block(self) -> str:
        """Name, in the layer, of the module around the experts."""
        return "" if self.experts is None else self.experts.removeprefix(f"{self.path}.").rpartition(".")[0]


@dataclass(frozen=True)
class Feed:
    """What a layer's MLP is fed with: the residual stream, normalised and times `factor`.

    Attributes:
        block: name of the MLP in the layer.
        factor: [H] float32 on the CPU.
        eps: of the norm.
    """

    block: str
    factor: torch.Tensor
    eps: float


def decoder_layers(model: nn.Module) -> list[DecoderLayer]:
    """The layers of the list that holds most routed experts; none when there are no experts."""
    found: dict[str, dict[int, list[str]]] = {}
    for path, module in model.named_modules():
        place = _place(model, path) if expert_count(module) else None
        if place is not None:
            found.setdefault(place[0], {}).setdefault(place[1], []).append(path)
    if not found:
        return []
    home, experts = max(found.items(), key=lambda item: len(item[1]))
    layers = model.get_submodule(home)
    single = {number: paths[0] for number, paths in experts.items() if len(paths) == 1}
    return [
        DecoderLayer(number, layer, f"{home}.{number}", single.get(number))
        for number, layer in enumerate(layers.children())
    ]


def expert_count(module: nn.Module) -> int:
    """E, when `module` is the routed experts of a layer, stock or replaced; else 0."""
    if isinstance(module, PhaseSwitch):
        return 0 if module.keeps_children else expert_count(module.decode)
    if isinstance(module, Operator):
        flags: Any = getattr(module, "flags", None)
        return int(getattr(flags, "experts", 0)) if module.operator_name.startswith("experts.") else 0
    count = getattr(module, "num_experts", None)
    stacked = [one for one in module._parameters.values() if one is not None and one.dim() == 3]
    return count if isinstance(count, int) and any(len(one) == count for one in stacked) else 0


def read_feed(layer: DecoderLayer) -> Feed | str:
    """The norm that feeds the layer's MLP, or the reason why that cannot be told."""
    stock = layer.module
    if isinstance(stock, Operator) or "forward" in vars(stock):
        return "the layer's forward was replaced"
    norms = {name: child for name, child in stock.named_children() if _is_norm(child)}
    if not norms:
        return "the layer has no norm that has a weight and nothing else"
    width = int(next(iter(norms.values()))._parameters["weight"].numel())  # type: ignore[union-attr]
    runs = [_run(stock, norms, width, answer) for answer in (_with_more, torch.zeros_like)]
    hidden, calls = max(runs, key=lambda run: len(run[1]))
    if layer.block:
        calls = calls[: next((i + 1 for i, call in enumerate(calls) if call.name == layer.block), 0)]
    if not calls or calls[-1].name in norms:
        return "the layer's forward does not show how it calls its MLP"
    block = calls[-1]
    fed = [call for call in calls[:-1] if call.name in norms and call.answer is block.given]
    if not fed:
        return "its MLP is not fed by a norm"
    if fed[-1].given.shape != hidden.shape or not torch.equal(fed[-1].given, hidden):
        return "the norm before its MLP does not see the residual stream alone"
    return _factor(block.name, norms[fed[-1].name])


def stock_block(block: nn.Module) -> nn.Module:
    """`block`, or the stock module over the same children where an operator keeps them and can make it."""
    if isinstance(block, PhaseSwitch) and block.keeps_children:
        block = block.decode_operator
    twin = getattr(block, "stock_twin", None) if isinstance(block, Operator) else None
    return block if twin is None else twin()


def _place(model: nn.Module, path: str) -> tuple[str, int] | None:
    """(path of the list, number in it) of the innermost list of layers around `path`."""
    parts = path.split(".")
    for at in range(len(parts) - 1, 0, -1):
        if parts[at].isdecimal() and isinstance(model.get_submodule(".".join(parts[:at])), nn.ModuleList):
            return ".".join(parts[:at]), int(parts[at])
    return None


def _is_norm(module: nn.Module) -> bool:
    own = dict(module.named_parameters())
    weight = own.get("weight")
    return len(own) == 1 and weight is not None and weight.dim() == 1 and "norm" in type(module).__name__.lower()


def _with_more(x: torch.Tensor) -> tuple[torch.Tensor, None]:
    return torch.zeros_like(x), None


def _run(
    layer: nn.Module, norms: dict[str, nn.Module], width: int, answer: Callable[[torch.Tensor], Any]
) -> tuple[torch.Tensor, list[Call]]:
    """Run the layer with stand-ins: norms change nothing, all else answers with zeros. What it saw, until it failed."""
    calls: list[Call] = []
    stand_ins = {
        name: StandIn(name, calls, torch.clone if name in norms else answer) for name, _ in layer.named_children()
    }
    with probing():
        hidden = torch.randn((1, _PROBE_TOKENS, width), generator=torch.Generator().manual_seed(0))
        needed = [
            one.name
            for one in list(inspect.signature(type(layer).forward).parameters.values())[2:]
            if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
        ]
        with suppress(*PROBE_FAULTS):  # what came before a fault counts
            type(layer).forward(shell_of(layer, stand_ins), hidden, **dict.fromkeys(needed))
    return hidden, calls


def _factor(block: str, norm: nn.Module) -> Feed | str:
    """What the norm multiplies with, w or 1 + w, by comparison with the module itself."""
    weight: Any = norm._parameters["weight"]
    eps = next((getattr(norm, name) for name in _EPS_NAMES if isinstance(getattr(norm, name, None), float)), None)
    if eps is None or weight.is_meta:
        return "its norm has no eps that is known"
    with probing():
        x = torch.randn((_PROBE_TOKENS, weight.numel()), generator=torch.Generator().manual_seed(1))
        plain = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
        own = weight.detach().to("cpu", torch.float32)
        try:
            actual = norm(x.to(weight.device)).to("cpu", torch.float32)
        except PROBE_FAULTS:
            return "its norm cannot be tried"
        for factor in (own, 1 + own):
            if actual.shape == plain.shape and torch.allclose(actual, plain * factor, rtol=1e-2, atol=1e-3):
                return Feed(block, factor, eps)
    return "its norm multiplies neither with w nor with 1 + w"
