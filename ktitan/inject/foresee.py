"""Lets the store read experts before a router asks for them: who looks at whom, once the model is in place."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ktitan.inject.journal import Journal
from ktitan.inject.sights import Blind, Sight, find_sights
from ktitan.native.streams import StreamBank, foresee, foretell

__all__ = ["Foresight", "add_foresight"]

logger = logging.getLogger(__name__)

# Steps of more tokens than that read a prompt, which needs nearly every expert (MOST_DECODED of csrc/tiers/store.h).
_MOST_DECODED = 8


@dataclass(frozen=True)
class Foresight:
    """How many layers with streamed experts there are, and how many of them are foreseen."""

    layers: int
    foreseen: int
    blind: tuple[Blind, ...] = ()

    def __str__(self) -> str:
        text = f"the experts of {self.foreseen} of {self.layers} streamed layers are foreseen"
        reasons = sorted({one.why for one in self.blind})
        return f"{text} (not the others: {'; '.join(reasons)})" if reasons else text


def add_foresight(model: nn.Module, journal: Journal) -> Foresight:
    """Connect every layer with streamed experts with the MLP before it."""
    sights, blind = find_sights(model)
    blind = [one for one in blind if _bank(one.block) is not None]
    sights = [sight for sight in sights if _bank(sight.block) is not None]
    foreseen = sum(_connect(sight, model, journal) for sight in sights)
    found = Foresight(len(sights) + len(blind), foreseen, tuple(blind))
    logger.info("%s", found)
    return found


def _bank(block: nn.Module) -> StreamBank | None:
    """The bank of a block whose experts are streamed."""
    entered = getattr(getattr(block, "experts", None), "entered", None)
    handle = getattr(entered, "handle", None)
    return handle if isinstance(handle, StreamBank) else None


def _connect(sight: Sight, model: nn.Module, journal: Journal) -> bool:
    target = _bank(sight.block)
    if target is None:
        return False
    if sight.table is not None:
        get: Any = getattr(model, "get_input_embeddings", None)
        embedding: nn.Module | None = None if get is None else get()
        if embedding is None:
            return False
        journal.add_hook(embedding.register_forward_pre_hook(_teller(sight.table, target)))
        return True
    if sight.predictor is None:
        return False
    source = _bank(sight.source)
    if source is not None:
        source.foresee(sight.predictor, target)
    else:
        journal.add_hook(sight.source.register_forward_pre_hook(_looker(sight, target)))
    return True


def _looker(sight: Sight, target: StreamBank) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    def look(_: nn.Module, args: tuple[Any, ...]) -> None:
        hidden = args[0] if args else None
        if sight.predictor is None or not isinstance(hidden, torch.Tensor) or hidden.device.type != "cpu":
            return
        rows = hidden.reshape(-1, hidden.shape[-1])
        if len(rows) <= _MOST_DECODED:
            foresee(rows, sight.predictor, target)

    return look


def _teller(table: torch.Tensor, target: StreamBank) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    def tell(_: nn.Module, args: tuple[Any, ...]) -> None:
        ids = args[0] if args else None
        if isinstance(ids, torch.Tensor) and ids.device.type == "cpu" and ids.numel() <= _MOST_DECODED:
            foretell(table[ids.reshape(-1)].reshape(-1).unique(), target)

    return tell
