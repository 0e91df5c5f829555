"""Lets the store foresee what routers will choose: predictors for streamed layers, and hooks before them.

A guess changes no result: where anything is unclear there is no prediction, with a reason.
"""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ktitan.errors import UnsupportedError
from ktitan.inject.hashed import tables_of
from ktitan.inject.journal import Journal
from ktitan.inject.sights import Sight, find_sights
from ktitan.operator import probing
from ktitan.tiers.routing import Predictor
from ktitan.tiers.store import TierStore

__all__ = ["MOST_FORESEEN_TOKENS", "Foresight", "foresee"]

# A step of more is a prompt, which needs nearly all experts anyway (MOST_DECODED of csrc/tiers/store.cpp).
MOST_FORESEEN_TOKENS = 8
_PROBE_TOKENS = 32

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Foresight:
    """What of a model is foreseen.

    Attributes:
        layers: layers with streamed experts.
        foreseen: those of them whose experts are predicted.
        reasons: why the others are not, by number of the layer.
        nbytes: memory of the predictors, beside the model's own routers.
    """

    layers: int
    foreseen: int
    reasons: dict[int, str]
    nbytes: int = 0

    def summary(self) -> str:
        """One line."""
        why = "; ".join(f"{reason} ({count})" for reason, count in Counter(self.reasons.values()).items())
        return f"experts of {self.foreseen} of {self.layers} layers are foreseen" + (
            f" (why not: {why})" if why else ""
        )


def foresee(model: nn.Module, store: TierStore, journal: Journal) -> Foresight:
    """Give each streamed layer the predictor of the next one; a layer without streamed experts gets a hook that the
    journal takes back.
    """
    reasons: dict[int, str] = {}
    predictors: list[Predictor] = []
    tables = _tables(model, store, journal)
    for sight in find_sights(model):
        bank = store.banks.get(sight.experts)
        if bank is None or sight.experts in tables:
            continue
        predictor = _predictor(sight, bank.first_record)
        if isinstance(predictor, str):
            reasons[sight.layer] = predictor
            continue
        predictors.append(predictor)
        source = store.banks.get(sight.source_experts or "")
        if source is not None:
            source.foresee(predictor)
        else:
            hook = _Foresee(store, predictor)
            journal.add_hook(model.get_submodule(sight.source).register_forward_pre_hook(hook, with_kwargs=True))
    found = Foresight(
        len(store.banks), len(predictors) + len(tables), reasons, sum(one.own_bytes for one in predictors)
    )
    if found.layers:
        logger.info("%s", found.summary())
    return found


def _tables(model: nn.Module, store: TierStore, journal: Journal) -> dict[str, torch.Tensor]:
    """The streamed layers that route by token, foretold by a hook on the input embedding."""
    tables = {path: table for path, table in tables_of(model).items() if path in store.banks}
    embedding = _embedding(model)
    if not tables or embedding is None:
        return {}
    hook = _Foretell(store, [(store.banks[path].first_record, table) for path, table in tables.items()])
    journal.add_hook(embedding.register_forward_pre_hook(hook, with_kwargs=True))
    return tables


def _embedding(model: nn.Module) -> nn.Module | None:
    with suppress(NotImplementedError, AttributeError):
        found: Any = model.get_input_embeddings()  # type: ignore[operator]
        return found if isinstance(found, nn.Module) else None
    return None


class _Foretell:
    """Pre-hook of the input embedding: ids [B, T].

    Args:
        store: of the experts.
        layers: (record of expert 0, [V, K] experts by token) of each layer, in order.
    """

    def __init__(self, store: TierStore, layers: list[tuple[int, torch.Tensor]]) -> None:
        self.store = store
        self.layers = layers

    def __call__(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = args[0] if args else kwargs.get("input")
        if torch.compiler.is_compiling() or not isinstance(ids, torch.Tensor) or ids.is_floating_point():
            return
        if not 0 < ids.numel() <= MOST_FORESEEN_TOKENS:
            return
        tokens = ids.detach().reshape(-1).to("cpu", torch.int64)
        if bool((tokens < 0).any()):
            return
        chosen = [first + table[tokens % len(table)].reshape(-1) for first, table in self.layers]
        self.store.foretell(list(dict.fromkeys(torch.cat(chosen).tolist())))

    def __deepcopy__(self, memo: dict[int, Any]) -> _Foretell:
        return self


class _Foresee:
    """Pre-hook of an MLP; a class, so that an injected model can be copied. Copies share the store."""

    def __init__(self, store: TierStore, predictor: Predictor) -> None:
        self.store = store
        self.predictor = predictor

    def __call__(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = args[0] if args else kwargs.get("hidden_states", kwargs.get("x"))
        if torch.compiler.is_compiling() or not isinstance(hidden, torch.Tensor):
            return
        tokens = hidden.numel() // self.predictor.hidden
        if hidden.shape[-1] == self.predictor.hidden and 0 < tokens <= MOST_FORESEEN_TOKENS and hidden.is_cpu:
            self.store.foresee(self.predictor, hidden.reshape(tokens, -1))

    def lower(self, builder: Any, x: Any) -> None:
        """The same in a program: x [T, H]."""
        if x.width == self.predictor.hidden:
            builder.foresee(x, self.store.native, self.predictor)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Foresee:
        return self


def _predictor(sight: Sight, first_record: int) -> Predictor | str:
    """The native predictor, when it chooses what the formula chooses, or the reason why there is none."""
    router = sight.router
    if router is None:
        return sight.reason
    if router.weight.device.type != "cpu":
        return "its router is on another device"
    try:
        own, predictor = router.predictor(), router.predictor(sight.scale, first_record)
    except UnsupportedError as error:
        return error.message
    with probing():
        rows = torch.randn((_PROBE_TOKENS, own.hidden), generator=torch.Generator().manual_seed(2))
        native, formula = (one(rows, router.form.chosen).sort(-1).values for one in (own.predict, router.choose))
    # One row may have a tie.
    return predictor if (native != formula).any(-1).sum() <= 1 else "native code chooses otherwise than its router"
