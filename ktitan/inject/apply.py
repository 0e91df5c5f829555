"""Carries a plan out on a model, all or nothing. The only place that edits a user's module tree."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ktitan.errors import UnsupportedError, WeightError
from ktitan.inject.foresee import Foresight, foresee
from ktitan.inject.handle import Handle
from ktitan.inject.hops import add_hop
from ktitan.inject.journal import Journal
from ktitan.inject.lora import adapt
from ktitan.inject.materialize import fill_module, fill_temporary_buffers, stock_dtypes
from ktitan.inject.phases import PhaseDevices, Phases, PhaseSwitch
from ktitan.inject.refusals import refuse_methods
from ktitan.inject.streaming import make_store, open_store, read_bytes
from ktitan.operator import Operator
from ktitan.plan.rows import Choice, Decision, Plan
from ktitan.weights.binding import WeightMap
from ktitan.weights.module_weights import BoundWeights

__all__ = ["HANDLE_NAME", "apply_plan", "refuse_injected"]

HANDLE_NAME = "ktitan"
Progress = Callable[[int, int], None]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Replacement:
    """A stock module and what stands in for it."""

    decision: Decision
    stock: nn.Module
    dtypes: dict[str, torch.dtype]
    operators: tuple[Operator, ...]


def apply_plan(
    model: nn.Module, plan: Plan, *, keep_original: bool = False, progress: Progress | None = None
) -> Handle:
    """Replace, place and load every module as planned.

    Args:
        model: the model that the plan was made for.
        plan: without problems (`plan.check()` has passed), with sources.
        keep_original: also hold the stock tensors in memory, so that `undo()` reads nothing.
        progress: called with (bytes read, bytes in all).

    Returns:
        The handle, which is also `model.ktitan`.

    Raises:
        UnsupportedError: the model is injected already, or an operator does not compute what the stock module does.
        WeightError, IoError, FormatError: loading failed; the model is as it was.
    """
    refuse_injected(model)
    if plan.weights is None:
        raise WeightError("the plan was made without weights", remedy="pass weights=")
    journal = Journal(model)
    run = _Application(model, plan, plan.weights, journal, progress)
    try:
        handle = run.carry_out(keep_original)
    except BaseException:
        journal.roll_back()
        raise
    finally:
        plan.weights.close()
        for source in plan.weights.sources:
            source.on_read = None
    return handle


def refuse_injected(model: nn.Module) -> None:
    """Injection starts from a stock model.

    Raises:
        UnsupportedError: `model` is injected already.
    """
    if hasattr(model, HANDLE_NAME):
        raise UnsupportedError("this model is injected already", type(model).__name__, "call model.ktitan.undo() first")


def _is_live(weights: WeightMap) -> bool:
    return any(source.kind == "live" for source in weights.sources)


class _Application:
    """One run of `apply_plan`."""

    def __init__(
        self, model: nn.Module, plan: Plan, weights: WeightMap, journal: Journal, progress: Progress | None
    ) -> None:
        self.model = model
        self.plan = plan
        self.weights = weights
        self.journal = journal
        self.replacements: list[_Replacement] = []
        self.phases = Phases()
        self.switches = 0
        self.packed: dict[Hashable, Any] = {}
        self.store = make_store(plan)
        if self.store is not None:
            journal.on_roll_back(self.store.close)
        self.progress = progress
        self._meter(progress)

    def carry_out(self, keep_original: bool) -> Handle:
        replacements = self.replacements = [self._build(decision) for decision in self.plan.decisions]
        live = _is_live(self.weights)
        originals = self._originals(replacements) if keep_original and not live else None
        fill_temporary_buffers(self.model, self.plan.devices, self.journal)
        kept = self._kept_dtypes()
        for replacement in replacements:
            self._put(replacement)
        self._load_kept(kept)
        for replacement in replacements:
            self._load(replacement)
        self._tie()
        self._finish()
        if self.store is not None:
            open_store(self.store, self.plan, self.weights, self.progress)
        self._check()
        if self.plan.adapter is not None:
            adapt(self.model, self.plan.adapter, self.journal)
        foresight = self._foresee()
        refuse_methods(self.model, self.journal)
        if live:
            self._release(replacements, keep_original)
        replaced = [(replacement.decision.path, replacement.stock) for replacement in replacements]
        handle = Handle(self.model, self.plan, self.journal, replaced, originals, self.store, foresight)
        self.journal.set_attribute(self.model, HANDLE_NAME, handle)
        return handle

    def _build(self, decision: Decision) -> _Replacement:
        """Operators without data; the model is not touched yet."""
        stock = self.model.get_submodule(decision.path)
        dtypes = stock_dtypes(self.model, decision.path, stock, own_only=decision.choice.operator.keeps_children)
        made = [_from_module(stock, choice) for choice in (decision.choice, decision.prefill) if choice is not None]
        return _Replacement(decision, stock, dtypes, tuple(made))

    def _put(self, replacement: _Replacement) -> None:
        module: nn.Module = replacement.operators[0]
        decision = replacement.decision
        if decision.prefill is not None:
            devices = PhaseDevices(decision.choice.context.device, decision.prefill.context.device)
            decode, prefill = replacement.operators
            module = PhaseSwitch(decode, prefill, self.phases, devices)
            self.switches += 1
        self.journal.replace(replacement.decision.path, module)

    def _kept_dtypes(self) -> dict[str, dict[str, torch.dtype]]:
        """Dtypes of the kept modules by path, while the model's first parameter still tells its dtype."""
        return {
            path: stock_dtypes(self.model, path, self.model.get_submodule(path), own_only=True)
            for path in self.plan.devices
        }

    def _load_kept(self, dtypes: dict[str, dict[str, torch.dtype]]) -> None:
        own = _is_live(self.weights)
        for path, device in self.plan.devices.items():
            fill_module(self.model.get_submodule(path), self._view(path, dtypes[path]), device, self.journal, own)

    def _load(self, replacement: _Replacement) -> None:
        view = self._view(replacement.decision.path, replacement.dtypes)
        if len(replacement.operators) > 1:
            view = view.sharing()
        for operator in replacement.operators:
            operator.load(view)

    def _view(self, path: str, dtypes: dict[str, torch.dtype]) -> BoundWeights:
        return BoundWeights(self.weights, path, dtypes, self._resident, self.packed, self.store)

    def _resident(self, name: str) -> torch.Tensor | None:
        """A tensor of the injected model by its stock name, when it is loaded."""
        path, _, leaf = name.rpartition(".")
        try:
            module = self.model.get_submodule(path)
        except AttributeError:
            return None
        held = module._parameters.get(leaf)
        return held if held is not None and not held.is_meta else None

    def _tie(self) -> None:
        """One tensor for tied names where both modules hold it in the same form; a file that stores both with
        different numbers keeps both, as the stock loader does.
        """
        pairs = {**(getattr(self.model, "all_tied_weights_keys", None) or {}), **self.weights.tied}
        for target, source in pairs.items():
            held, wanted = self._resident(source), self._resident(target)
            if held is None or wanted is None or held is wanted:
                continue
            same_form = (held.dtype, held.device, held.shape) == (wanted.dtype, wanted.device, wanted.shape)
            if same_form and torch.equal(held, wanted):
                path, _, leaf = target.rpartition(".")
                self.journal.set_parameter(self.model.get_submodule(path), leaf, held)

    def _finish(self) -> None:
        for hop in self.plan.hops:
            add_hop(self.model.get_submodule(hop.path), hop, self.journal)
        if self.switches:
            for hook in self.phases.watch(self.model):
                self.journal.add_hook(hook)
        self.journal.set_training(False)
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                self.journal.set_attribute(parameter, "requires_grad", False)
        generation = getattr(self.model, "generation_config", None)
        if generation is not None:
            # Injected operators are opaque to torch.compile, which generate() would otherwise start on a static cache.
            self.journal.set_attribute(generation, "disable_compile", True)

    def _check(self) -> None:
        """Nothing may be left on meta, and operators that can prove themselves against the stock code do so."""
        state = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        unfilled = [name for name, tensor in state.items() if tensor.is_meta]
        if unfilled:
            more = f" and {len(unfilled) - 4} more" if len(unfilled) > 4 else ""
            raise WeightError(
                f"not filled after loading: {', '.join(unfilled[:4])}{more}",
                type(self.model).__name__,
                "an operator's load() left parameters on meta; report it to the operator's author",
            )
        for replacement in self.replacements:
            for operator in replacement.operators:
                operator.self_check()

    def _foresee(self) -> Foresight | None:
        """Once everything is in place, the pairs of an adapter, too; None where nothing is to be foreseen."""
        if self.store is None or self.plan.cache_options.prefetch == "off":
            return None
        return foresee(self.model, self.store, self.journal)

    def _meter(self, progress: Progress | None) -> None:
        total = read_bytes(self.plan, self.weights)
        done = 0

        def count(size: int) -> None:
            nonlocal done
            done += size
            if progress is not None:
                progress(min(done, total), total)

        for source in self.weights.sources:
            source.on_read = count

    def _release(self, replacements: list[_Replacement], keep_original: bool) -> None:
        """A model that was its own source: stock tensors that no operator holds unchanged go, unless wanted."""
        self.weights.bindings.clear()
        if keep_original:
            return
        held = {t.data_ptr() for t in [*self.model.parameters(), *self.model.buffers()]}
        for replacement in replacements:
            for name in replacement.dtypes:
                path, _, leaf = name.rpartition(".")
                owner = replacement.stock.get_submodule(path)
                table = owner._parameters if leaf in owner._parameters else owner._buffers
                tensor = table[leaf]
                if tensor is not None and tensor.data_ptr() not in held:
                    table[leaf] = tensor.detach().to("meta")  # type: ignore[assignment]

    def _originals(self, replacements: list[_Replacement]) -> dict[str, torch.Tensor]:
        """Stock tensors of all replaced modules, on the CPU."""
        kept = {}
        for replacement in replacements:
            view = self._view(replacement.decision.path, replacement.dtypes)
            for name in view.names():
                kept[f"{replacement.decision.path}.{name}"] = view.tensor(name)
        return kept


def _from_module(stock: nn.Module, choice: Choice) -> Operator:
    with torch.device("meta"):
        return choice.operator.from_module(stock, choice.config, choice.context)
