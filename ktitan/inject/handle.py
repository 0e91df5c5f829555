"""`model.ktitan`: the plan, figures, and the way back."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ktitan.context import KVAllowance
from ktitan.errors import UnsupportedError
from ktitan.fingerprint import fingerprint
from ktitan.inject.foresee import Foresight
from ktitan.inject.journal import Journal
from ktitan.inject.lora import adapter_bytes
from ktitan.inject.materialize import stock_dtypes
from ktitan.inject.recording import TraceRecorder, start_recording
from ktitan.operator import Operator
from ktitan.plan.rebudget import KVPlan, share_again
from ktitan.plan.rows import Plan
from ktitan.tiers import Budget, parse_budget
from ktitan.tiers.figures import Figures
from ktitan.tiers.profile import ProfileFile
from ktitan.tiers.store import TierStore
from ktitan.weights.module_weights import BoundWeights

__all__ = ["Handle"]


class Handle:
    """What an injected model knows about itself.

    Attributes:
        plan: the plan that was carried out, with the bytes that `rebudget` shared out last.
        kv_allowance: what the KV pools of this model ask how far they may grow.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        journal: Journal,
        replaced: list[tuple[str, nn.Module]],
        originals: dict[str, torch.Tensor] | None,
        store: TierStore | None = None,
        foresight: Foresight | None = None,
    ) -> None:
        self._foresight = foresight
        self._recorder: TraceRecorder | None = None
        self._store = store
        self._profiles: dict[str, ProfileFile] = {}  # other than the plan's
        self.plan = plan
        self._planned_kv = KVPlan.of(plan)
        self.kv_allowance = KVAllowance(self.kv_budget_bytes)
        self._model = model
        self._journal: Journal | None = journal
        self._replaced = replaced
        self._originals = originals
        self._left = dict(model.named_modules(remove_duplicate=False))
        self._program: tuple[Any, int] | None = None
        self._make_program: Callable[[], Any] | None = None
        self._was_live = plan.weights is not None and any(source.kind == "live" for source in plan.weights.sources)

    @property
    def program(self) -> Any:
        """The step program of the whole model: `run(ids [T] int64, cache) -> logits [1, V]`.

        None where there is none, and while the modules do more than they did when it was made: hooks (a recording),
        an adapter, other weights.
        """
        if self._make_program is not None:
            make, self._make_program = self._make_program, None
            self.program = make()
        if self._program is None:
            return None
        program, state = self._program
        return program if fingerprint(self._model) == state else None

    @program.setter
    def program(self, program: Any) -> None:
        self._program = None if program is None else (program, fingerprint(self._model))

    def offer_program(self, make: Callable[[], Any]) -> None:
        """Let `make` say what the program is (None: there is none) when it is first asked for."""
        self._make_program = make

    def stats(self) -> dict[str, Any]:
        """What the model holds, and what its streams did; may be called while it runs.

        Returns:
            resident_bytes: held now, by tier: real tensors and packed weights, each once, and the store's memory.
            planned_bytes: by tier, of the plan.
            limits: bytes allowed, by tier, where there is a limit.
            store: raw counters of streamed weights, as `store_stats`.
            figures: what these mean, since the model was loaded: names and units of `ktitan.tiers.figures.Figures`,
                such as hit_rate (0 to 1), read_bytes_per_token, stall_seconds, stall_share, drive_bytes_per_second,
                recall, recall_of_misses, waste_share, policy (a name).

            foresight: which layers with streamed experts are foreseen, and why not the others.

            "store", "figures" and "foresight" are None where nothing is streamed, or not any more.
        """
        held: dict[str, int] = {}
        seen: set[int] = set()
        for tensor in [*self._model.parameters(), *self._model.buffers()]:
            storage = tensor.untyped_storage()
            if tensor.is_meta or storage.data_ptr() in seen:
                continue
            seen.add(storage.data_ptr())
            tier = "ram" if tensor.device.type == "cpu" else "vram"
            held[tier] = held.get(tier, 0) + storage.nbytes()
        packed = [part for module in self._model.modules() if isinstance(module, Operator) for part in module.held()]
        for size in {id(part): part.nbytes for part in packed}.values():
            held["ram"] = held.get("ram", 0) + size
        for tier, size in adapter_bytes(self._model).items():
            held[tier] = held.get(tier, 0) + size
        store, figures = self.store_stats(), None
        if store is not None:
            held["ram"] = held.get("ram", 0) + int(store["arena_bytes"])
            figures = Figures.between(None, store, self.store_seconds).as_dict()
        if self._foresight is not None:
            held["ram"] = held.get("ram", 0) + self._foresight.nbytes
        return {
            "resident_bytes": held,
            "planned_bytes": self.plan.totals,
            "limits": self.plan.limits,
            "store": store,
            "figures": figures,
            "foresight": None if self._foresight is None else asdict(self._foresight),
        }

    def store_stats(self) -> dict[str, Any] | None:
        """The counters of streamed weights by the names of kt_store_counters, reads under "io"; None without."""
        return None if self._store is None else self._store.stats()

    def save_profile(self, path: str | Path | None = None) -> None:
        """Add the experts that this session chose to a profile, for the next start; may be called again.

        Args:
            path: of the profile; None: that of `profile=`.

        Raises:
            UnsupportedError: nothing is streamed (any more), no path was given, or the file is another model's.
            FormatError, IoError: the file is no profile, or cannot be written.
        """
        if self._store is None:
            raise UnsupportedError("nothing is streamed here", "save_profile", "call it before undo()")
        own = self.plan.profile
        if path is None and own is None:
            raise UnsupportedError("no profile was named", "save_profile", "give a path, or load with profile=")
        file = own if own is not None and path in (None, own.path) else self._profiles.get(str(path))
        if file is None:
            file = self._profiles[str(path)] = ProfileFile(str(path))
        file.save(self._store.profile())

    @property
    def store_seconds(self) -> float:
        """Wall time that the counters of `store_stats` cover; 0 without."""
        return 0.0 if self._store is None else self._store.open_seconds

    @property
    def kv_budget_bytes(self) -> int | None:
        """Bytes that the KV cache may grow to: what the limits of its tiers leave beside weights and workspace.

        None where no limit is known. Where weights are streamed, their cache has taken what was left: what was planned.
        """
        if self.plan.cache is not None:
            return sum(uses["kv"] for uses in self.plan.parts.values())
        tiers = [tier for tier, uses in self.plan.parts.items() if uses["kv"] and tier in self.plan.limits]
        if not tiers:
            return None
        parts = self.plan.parts
        taken = {tier: sum(size for use, size in parts[tier].items() if use != "kv") for tier in tiers}
        return sum(max(0, self.plan.limits[tier] - taken[tier]) for tier in tiers)

    def set_generation_config(self, config: Any) -> None:
        """Give the model a generation config until `undo()`; like the one it had, it may not compile the model."""
        config.disable_compile = True
        if self._journal is not None:
            self._journal.set_attribute(self._model, "generation_config", config)

    def record_trace(self, path: str | Path) -> TraceRecorder:
        """Record what the routers choose from now on, for `ktitan bench replay` (`ktitan.tiers.trace`).

        Any operator may compute the experts. Predictions from the layer before are recorded beside the choices, where
        there are any. At most 256 MiB are kept in memory; what comes later is left out, with a warning.

        Args:
            path: of the .npz, which `close()` or the end of `with` writes.

        Raises:
            UnsupportedError: no layers with routed experts, or this is a copy of an injected model.
            IoError: there is no such folder.
        """
        if self._journal is None:
            raise UnsupportedError(
                "this model is a copy of an injected one, or was unpickled", "record_trace", "record the original"
            )
        recorder = start_recording(self._model, Path(path), str(getattr(self._model.config, "name_or_path", "")))
        self._journal.on_roll_back(recorder.release)
        self._recorder = recorder
        return recorder

    def end_recording(self) -> None:
        """Write the trace that was begun last, where `with` will not come to its end; nothing without one.

        Raises:
            IoError: it cannot be written.
        """
        if self._recorder is not None and self._recorder.tokens:
            self._recorder.close()

    def rebudget(self, budget: str | Budget) -> None:
        """Change the budget of the running model, between two calls of it, from any thread.

        Weights that were read stay; the KV cache gets what was planned for it, and streamed weights what is left: those
        stay that matter most. Where that is too little, the KV cache may hold fewer tokens. No answer changes. With a
        smaller budget prompt caches forget what they keep.

        Args:
            budget: as for `optimize_and_load`; tiers that it does not name keep their limits.

        Raises:
            BudgetError: not a budget, or too small for what the model needs and its live KV caches hold, or more than
                this machine has; nothing has changed.
            UnsupportedError: the store of streamed weights was closed.
        """
        asked = parse_budget(budget)
        if self.plan.cache is not None and self._store is None:
            raise UnsupportedError("undo() has closed the store of streamed weights", "store", "load the model again")
        if any((asked.limit(tier) or limit) < limit for tier, limit in self.plan.limits.items()):
            self.kv_allowance.reclaim()
        with self.kv_allowance.lock:  # no pool grows meanwhile
            least = 0 if self._store is None else self._store.least_bytes
            shares = share_again(self.plan, self._planned_kv, asked, self.kv_allowance.held_bytes, least)
            if self._store is not None:
                self._store.resize(shares.cache_bytes)
            shares.enter(self.plan)
            self.kv_allowance.limit_bytes = self.kv_budget_bytes

    def undo(self) -> nn.Module:
        """Put the stock modules back with their own tensors, bit for bit, and return the model.

        Tensors come from the originals kept in memory, from the operators where they hold them unchanged (a model that
        was its own source), or are read from the source again.

        Raises:
            UnsupportedError: the stock tensors are nowhere any more, or others (PEFT) have put modules of their own in
                place of those that injection left: taking back ktitan's edits alone would give neither model.
            WeightError, IoError: the source cannot be read; the model stays injected.
        """
        journal = self._journal
        if journal is None:
            raise UnsupportedError(
                "this model is a copy of an injected one; only the original knows its stock modules",
                type(self._model).__name__,
                "call undo() on the original before copying",
            )
        self._refuse_changed_tree()
        stock_tensors = {path: self._tensors(path, stock) for path, stock in self._replaced}
        kept = self._loaded_state()
        self.kv_allowance.reclaim()
        self._program = self._make_program = None
        journal.roll_back()
        self._store = self._foresight = None
        for path, stock in self._replaced:
            _set_tensors(stock, stock_tensors[path])
        for table, name, tensor in kept:
            table[name] = tensor
        if not self._was_live:
            self._model.eval()
            self._tie()
        return self._model

    def _refuse_changed_tree(self) -> None:
        now = dict(self._model.named_modules(remove_duplicate=False))
        changed = [path for path, module in self._left.items() if now.get(path) is not module]
        if changed:
            kind = type(now.get(changed[0]))
            found = "gone" if changed[0] not in now else f"a {kind.__module__}.{kind.__qualname__}"
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            raise UnsupportedError(
                f"modules have been changed since injection: this one is now {found}{more}",
                changed[0],
                "take those changes back first (PEFT: unload()), then call undo()",
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> Handle:
        """The handle of a copied model: it knows the plan, but must not undo the original's edits."""
        twin = copy.copy(self)
        twin._model, twin._store = copy.deepcopy(self._model, memo), self._store
        twin._profiles = {}
        twin._journal, twin._replaced, twin._originals, twin._left = None, [], None, {}
        twin._recorder = twin._program = twin._make_program = None
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: the plan's public part; stock modules and open files stay behind."""
        plan = self.plan
        public = Plan(
            rows=plan.rows,
            hops=plan.hops,
            parts=plan.parts,
            streams=plan.streams,
            cache=plan.cache,
            cache_options=plan.cache_options,
            limits=plan.limits,
            budget=plan.budget,
            context_tokens=plan.context_tokens,
            kv_format=plan.kv_format,
            chunk_tokens=plan.chunk_tokens,
            origin=plan.origin,
            notes=plan.notes,
        )
        left_out: dict[str, Any] = {"plan": public, "_journal": None, "_replaced": [], "_originals": None, "_left": {}}
        left_out["_store"] = left_out["_foresight"] = left_out["_recorder"] = None
        left_out["_program"] = left_out["_make_program"] = None
        left_out["_profiles"] = {}
        return {**self.__dict__, **left_out}

    def _tensors(self, path: str, stock: nn.Module) -> dict[str, torch.Tensor]:
        """The stock tensors of one replaced module, by relative name."""
        operator = self._model.get_submodule(path)
        own_only = bool(getattr(operator, "keeps_children", False))
        dtypes = stock_dtypes(self._model, path, stock, own_only)
        real = {name: t for name, t in stock.state_dict(keep_vars=True).items() if name in dtypes and not t.is_meta}
        missing = [name for name in dtypes if name not in real]
        if not missing:
            return {}
        if self._originals is not None:
            return {name: self._originals[f"{path}.{name}"] for name in missing}
        if self.plan.weights is None or self._was_live:
            raise UnsupportedError(
                f"the stock tensors of {path} are gone", path, "inject with keep_original=True to be able to undo"
            )
        view = BoundWeights(self.plan.weights, path, dtypes)
        return {name: view.tensor(name) for name in missing}

    def _loaded_state(self) -> list[tuple[dict[str, Any], str, torch.Tensor]]:
        """Real tensors of the modules that stayed stock, with the tables they stand in: rolling back would put them on
        meta again.
        """
        tables: list[dict[str, Any]] = [self._model.get_submodule(path)._parameters for path in self.plan.devices]
        tables += [module._buffers for module in self._model.modules()]
        tables += [module._buffers for _, stock in self._replaced for module in stock.modules()]
        return [(table, name, tensor) for table in tables for name, tensor in table.items() if tensor is not None]

    def _tie(self) -> None:
        tie = getattr(self._model, "tie_weights", None)
        if tie is not None and self.plan.weights is not None and self.plan.weights.tied:
            tie()


def _set_tensors(stock: nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        path, _, leaf = name.rpartition(".")
        owner = stock.get_submodule(path)
        if leaf in owner._parameters:
            owner._parameters[leaf] = nn.Parameter(tensor, requires_grad=False)
        else:
            owner._buffers[leaf] = tensor
