"""Which layer can be foreseen from which: its own norm and router on the input of the MLP before it.

With x the residual stream, the MLP of layer L sees h = x_hat * w_L. The attention and MLP between change x little, so
the router of layer L + 1 is guessed to see x_hat * w_{L+1} = h * (w_{L+1} / w_L).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from ktitan.inject.decoder import DecoderLayer, Feed, decoder_layers, read_feed
from ktitan.inject.routers import read_router
from ktitan.tiers.routing import Router

__all__ = ["Sight", "find_sights"]

# A channel of a norm below this share of the largest one is taken for lost.
_LEAST_SHARE = 1e-6


@dataclass(frozen=True)
class Sight:
    """A layer with experts, and from where it is foreseen.

    Attributes:
        layer: number of the decoder layer.
        experts: path of its experts.
        router: its router; None where the layer cannot be foreseen.
        scale: [H] float32 on the CPU, for the input of the MLP before it.
        source: path of that MLP.
        source_experts: path of the experts in it, which compute from the same input; None where it has none.
        reason: why it cannot be foreseen; empty where it can.
    """

    layer: int
    experts: str
    router: Router | None = None
    scale: torch.Tensor | None = None
    source: str = ""
    source_experts: str | None = None
    reason: str = ""


def find_sights(model: nn.Module) -> list[Sight]:
    """A sight for each decoder layer with routed experts, in order. The weights must be loaded."""
    layers = decoder_layers(model)
    known = _Known()
    return [
        _sight(layer, layers[at - 1] if at else None, known)
        for at, layer in enumerate(layers)
        if layer.experts is not None
    ]


class _Known:
    """What was found out of layers, each once."""

    def __init__(self) -> None:
        self._feeds: dict[str, Feed | str] = {}
        self._routers: dict[str, Router | str] = {}

    def feed(self, layer: DecoderLayer) -> Feed | str:
        if layer.path not in self._feeds:
            self._feeds[layer.path] = read_feed(layer)
        return self._feeds[layer.path]

    def router(self, layer: DecoderLayer) -> Router | str:
        if layer.path not in self._routers:
            experts = str(layer.experts).rpartition(".")[2]
            self._routers[layer.path] = read_router(layer.module.get_submodule(layer.block), experts)
        return self._routers[layer.path]


def _sight(layer: DecoderLayer, before: DecoderLayer | None, known: _Known) -> Sight:
    path = str(layer.experts)
    unseen = partial(Sight, layer.number, path)
    if before is None:
        return unseen(reason="no layer stands before it")
    source, own = known.feed(before), known.feed(layer)
    if isinstance(own, str):
        return unseen(reason=own)
    if isinstance(source, str):
        return unseen(reason=f"of the layer before: {source}")
    if source.eps != own.eps or source.factor.shape != own.factor.shape:
        return unseen(reason="its norm has another eps or width than that of the layer before")
    size = source.factor.abs()
    if bool((size < size.max() * _LEAST_SHARE).any()) or not float(size.max()):
        return unseen(reason="the norm of the layer before leaves out channels")
    router = known.router(layer)
    if isinstance(router, str):
        return unseen(reason=router)
    scale = (own.factor / source.factor).contiguous()
    # Only of a block that was tried it is known that its experts see its input.
    same_input = before.experts is not None and not isinstance(known.router(before), str)
    experts = before.experts if same_input else None
    return Sight(layer.number, path, router, scale, f"{before.path}.{source.block}", experts)
