"""`optimize_and_load` and `load`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from ktitan.api.build import build_tokenizer, generation_config_of
from ktitan.api.checksums import check_weights
from ktitan.api.locate import ModelName, locate
from ktitan.api.planning import RulesArgument, plan_injection, prepare
from ktitan.api.programs import offer_program
from ktitan.api.tokenizer_files import check_vocabulary
from ktitan.errors import BudgetError, UnsupportedError, WeightError
from ktitan.hardware import detect
from ktitan.hub.names import parse_name
from ktitan.inject import apply_plan, refuse_injected
from ktitan.plan import Plan
from ktitan.tiers import Budget, format_bytes
from ktitan.tiers.options import CacheOptions
from ktitan.weights.files import is_file, stat_of
from ktitan.weights.opening import Weights, open_sources

__all__ = ["carry_out", "load", "optimize_and_load"]

ModelT = TypeVar("ModelT", bound=nn.Module)
Progress = Callable[[int, int], None]

logger = logging.getLogger(__name__)


def optimize_and_load(
    model: ModelT,
    rules: RulesArgument,
    weights: Weights = None,
    *,
    budget: str | Budget | None = None,
    device: str | None = None,
    quant: str | None = None,
    keep_original: bool = False,
    context: int | None = None,
    lora: str | Path | None = None,
    cache: str | CacheOptions | None = None,
    kv: str | None = None,
    profile: str | Path | None = None,
    progress: Progress | None = None,
) -> ModelT:
    """Inject operators into a stock model by rules and load its weights, all or nothing.

    Args:
        model: a transformers model (or any module tree) on meta, or with real tensors.
        rules: a YAML file, the name of a packaged one, "auto", or the parsed structure.
        weights: HF folder, `.safetensors`, `.gguf` (first shard, or a folder), or a list of these, the first that has
            a tensor winning. None: a model with real tensors is its own source; one on meta is looked for where its
            config was loaded from (`config._name_or_path`).
        budget: e.g. "vram=22GiB,ram=96GiB"; what it leaves open is what the machine has.
        device: where modules without a rule compute; default: the first GPU, else the CPU.
        quant: None or "as-stored"; quantizing on load comes in a later version.
        keep_original: keep the stock tensors in memory, so that `model.ktitan.undo()` reads nothing.
        context: tokens to keep room for in the KV cache.
        lora: folder of a PEFT adapter of low-rank pairs for linear modules, applied until `model.ktitan.undo()`.
        cache: which streamed experts stay in RAM and what is read early: "policy=lru,scope=global,prefetch=off"; what
            it leaves open is chosen by measurement (`ktitan.tiers.options`).
        kv: how the KV cache stores numbers: "f32", as they are computed; "bf16" and "q8", a half and 17 of 64 of the
            bytes, where float32 is computed on the CPU. q8 needs heads of whole blocks of 32 numbers.
        profile: file with the experts that earlier sessions chose, which are read at the start where it is there;
            `model.ktitan.save_profile()` adds this session.
        progress: called with (bytes read, bytes in all).

    Returns:
        The same object, of the same class, in eval mode, with `model.ktitan` attached.

    Raises:
        RuleError, PlanError, WeightError, BudgetError, HardwareError: everything that is wrong, before a byte is read.
        FormatError, IoError: a file is broken; the model is as it was.
        UnsupportedError: injected already, or something this version cannot do.
    """
    if not isinstance(model, nn.Module):
        raise UnsupportedError(f"{type(model).__name__} is not a module", "model", "give a transformers model")
    refuse_injected(model)
    weights = _local(weights, model)
    sources = open_sources(weights, model)
    plan = plan_injection(
        model,
        rules,
        sources,
        budget=budget,
        device=device,
        quant=quant,
        context=context,
        keep_original=keep_original,
        lora=lora,
        cache=cache,
        kv=kv,
        profile=profile,
    )
    carry_out(model, plan, keep_original, progress, generation_config_of(model, _home(weights, model), sources))
    return model


def load(
    path: ModelName,
    gguf_path: str | Path | Sequence[str | Path] | None = None,
    rules: RulesArgument = "auto",
    budget: str | Budget | None = None,
    quant: str | None = None,
    *,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    context: int | None = None,
    keep_original: bool = False,
    lora: str | Path | None = None,
    cache: str | CacheOptions | None = None,
    kv: str | None = None,
    profile: str | Path | None = None,
    verify_weights: bool = False,
    progress: Progress | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Build, inject and load MODEL with its tokenizer.

    Args:
        path: a folder, a `.gguf`, a hub id, or "demo".
        gguf_path: GGUF weights for a folder that holds config and tokenizer.
        rules, budget, quant, device, context, keep_original, lora, cache, kv, profile,
            progress: as in `optimize_and_load`.
        dtype: "float32", "bfloat16", "float16" or a torch dtype; default: the checkpoint's (float32 for float16 on a
            CPU); for a quantised GGUF on the CPU float32; for other GGUFs bfloat16 where the device has instructions
            for it, else float32.
        verify_weights: read a native model once more before it is loaded, and compare the checksum of every record;
            `progress` sees this pass, too. Other sources carry none and are refused.

    Raises:
        As `optimize_and_load`.
    """
    ready = prepare(path, gguf_path, device=device, dtype=dtype)
    if verify_weights:
        check_weights(ready.sources, progress)
    tokenizer = build_tokenizer(ready.files, ready.sources)
    faults, notes = check_vocabulary(tokenizer, ready.model, path)
    plan = plan_injection(
        ready.model,
        rules,
        ready.sources,
        budget=budget,
        device=ready.device,
        hardware=ready.hardware,
        quant=quant,
        context=context,
        keep_original=keep_original,
        lora=lora,
        cache=cache,
        kv=kv,
        profile=profile,
    )
    plan.add_problem(WeightError, faults)
    plan.notes += [*ready.notes, *notes]
    generation = generation_config_of(ready.model, ready.files.home, ready.sources)
    carry_out(ready.model, plan, keep_original, progress, generation)
    model: Any = ready.model
    return model, tokenizer


def _local(weights: Weights, model: nn.Module) -> Weights:
    """`weights` with hub ids found in, or brought to, the local cache; also the id that the config was loaded from."""
    if weights is None and all(parameter.is_meta for parameter in model.parameters()):
        weights = getattr(getattr(model, "config", None), "_name_or_path", "") or None
    if isinstance(weights, Sequence) and not isinstance(weights, str):
        return [_brought(one) for one in weights]
    return None if weights is None else _brought(weights)


def _brought(weights: str | Path) -> str | Path:
    if isinstance(weights, str) and weights and stat_of(weights) is None and parse_name(weights) is not None:
        return locate(weights).weights[0]
    return weights


def carry_out(
    model: nn.Module,
    plan: Plan,
    keep_original: bool = False,
    progress: Progress | None = None,
    generation: GenerationConfig | None = None,
) -> None:
    """Check `plan` and carry it out on the stock model that it was made for; arguments as in `optimize_and_load`.

    Raises:
        As `optimize_and_load`.
    """
    plan.check()
    _refuse_more_than_there_is(plan)
    logger.info("%s", plan.summary(rule_notes=False))
    handle = apply_plan(model, plan, keep_original=keep_original, progress=progress)
    if generation is not None:
        handle.set_generation_config(generation)
    offer_program(model, handle)


def _refuse_more_than_there_is(plan: Plan) -> None:
    """A budget may be planned for another machine; what is loaded has to fit into this one."""
    memory = detect().memory
    there = min(memory.total_bytes, memory.limit_bytes or memory.total_bytes)
    wanted = plan.totals.get("ram", 0)
    if there and wanted > there:
        raise BudgetError(
            f"ram: needs {format_bytes(wanted)}, this machine or its control group has {format_bytes(there)} in all",
            plan.origin,
            "give a smaller ram budget, or none: what does not fit is streamed",
        )


def _home(weights: Weights, model: nn.Module) -> Path | None:
    """The folder that holds the model's own files, when weights come from one."""
    origin = weights if weights is not None else getattr(getattr(model, "config", None), "_name_or_path", "")
    paths = [origin] if isinstance(origin, str | Path) else list(origin)
    return next((Path(path) for path in paths if path and is_file(Path(path) / "config.json")), None)
