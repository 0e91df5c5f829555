"""Plans from what users give: names, rule files, budgets."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import ktitan.operators  # noqa: F401  fills the registry
from ktitan.api.build import build_model, choose_dtype, is_packed, notes_of, read_config
from ktitan.api.locate import ModelFiles, ModelName, locate
from ktitan.api.placing import PlacedRules, place_rules
from ktitan.api.text_only import text_only_notes
from ktitan.errors import Fault, HardwareError, PlanError, UnsupportedError, WeightError
from ktitan.hardware import Hardware, detect
from ktitan.hub.fetch import Fetched
from ktitan.kv_formats import AS_COMPUTED, parse_kv
from ktitan.native import native_reason
from ktitan.plan import Plan, make_plan
from ktitan.plan.devices import whole_name
from ktitan.planner import auto_rules, packaged_rules, stream_to_fit
from ktitan.rules import RuleSet, parse_object, parse_rules
from ktitan.tiers import Budget, parse_budget
from ktitan.tiers.options import CacheOptions, parse_cache
from ktitan.tiers.profile import ProfileFile
from ktitan.weights.adapter import open_adapter
from ktitan.weights.files import names_in
from ktitan.weights.gguf_header import parse_header
from ktitan.weights.gguf_source import GgufSource, gguf_of_headers
from ktitan.weights.opening import open_source
from ktitan.weights.source import WeightSource

__all__ = ["Prepared", "RulesArgument", "plan_injection", "plan_model", "prepare"]

logger = logging.getLogger(__name__)

RulesArgument = str | Path | RuleSet | PlacedRules | Sequence[Any] | Mapping[str, Any]


@dataclass(frozen=True)
class Prepared:
    """A stock model on meta with its opened sources, before any plan; `notes` are for the plan."""

    files: ModelFiles
    sources: list[WeightSource]
    model: nn.Module
    hardware: Hardware
    device: str
    notes: list[str]


def prepare(
    model: ModelName,
    gguf_path: str | Path | Sequence[str | Path] | None = None,
    *,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    need_weights: bool = True,
) -> Prepared:
    """Find MODEL, open its sources' headers and build the stock model on meta.

    Raises:
        WeightError, FormatError, UnsupportedError: as the parts do.
    """
    files = locate(model, gguf_path, download_weights=need_weights)
    sources = _open(files, need_weights)
    hardware = detect()
    place = whole_name(default_device(hardware) if device is None else device)
    try:
        config = read_config(files, sources)
    finally:
        for source in sources:  # rotary factors are read already; reading again opens the file again
            source.close()
    if is_packed(config) and files.overrides:
        # A GGUF beside a packed checkpoint stands for it whole: the two do not mix.
        sources = [source for source in sources if Path(source.path) in files.overrides]
        del config.quantization_config
    computed = choose_dtype(dtype, config, hardware, place, sources)
    built = build_model(config, computed)
    notes = [*notes_of(files, sources), *text_only_notes(built, config)]
    return Prepared(files, sources, built, hardware, place, notes)


def _open(files: ModelFiles, need_weights: bool) -> list[WeightSource]:
    if files.remote is not None:
        return [*map(open_source, files.weights), _read_remote(files.remote)]
    try:
        return [open_source(path) for path in files.weights]
    except WeightError:
        # A folder with a config alone can still be planned: "will it fit?" comes before the download.
        if need_weights or files.home is None or files.overrides or _names_weights(files.home):
            raise
        return []


def _names_weights(home: Path) -> bool:
    """Whether the folder holds weights, or an index that promises some: then something is wrong with them."""
    return bool(names_in(home, ".safetensors", ".safetensors.index.json", ".ktitan.json"))


def _read_remote(model: Fetched) -> GgufSource:
    """A GGUF model that is still on the hub, by its headers: a few MiB are read, nothing is stored."""
    from ktitan.hub.remote import open_remote

    headers = []
    for path in model.files:
        with open_remote(model, path) as (handle, address, size):
            headers.append(parse_header(handle, address, size))
    return gguf_of_headers(headers[0].file, headers)


def plan_model(
    model: ModelName,
    rules: RulesArgument = "auto",
    *,
    gguf_path: str | Path | Sequence[str | Path] | None = None,
    budget: str | Budget | None = None,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    context: int | None = None,
    lora: str | Path | None = None,
    cache: str | CacheOptions | None = None,
    kv: str | None = None,
) -> Plan:
    """The plan of MODEL by `rules`, from headers alone; a folder with only a config.json will do.

    Returns:
        The plan; its problems are not raised (`plan.check()` does).
    """
    ready = prepare(model, gguf_path, device=device, dtype=dtype, need_weights=False)
    plan = plan_injection(
        ready.model,
        rules,
        ready.sources,
        budget=budget,
        device=ready.device,
        hardware=ready.hardware,
        context=context,
        lora=lora,
        cache=cache,
        kv=kv,
    )
    plan.notes += ready.notes
    return plan


def plan_injection(
    model: nn.Module,
    rules: RulesArgument,
    sources: Sequence[WeightSource],
    *,
    budget: str | Budget | None = None,
    device: str | None = None,
    hardware: Hardware | None = None,
    quant: str | None = None,
    context: int | None = None,
    keep_original: bool = False,
    lora: str | Path | None = None,
    cache: str | CacheOptions | None = None,
    kv: str | None = None,
    profile: str | Path | None = None,
) -> Plan:
    """The plan for a model object; see `optimize_and_load` for the arguments."""
    if quant not in (None, "as-stored"):
        raise UnsupportedError(f"quantizing on load (quant={quant!r}) is not in this version", remedy="leave it out")
    options, kv_format = parse_cache(cache), parse_kv(kv)
    profile_file = ProfileFile(profile) if profile is not None else None
    adapter = open_adapter(lora) if lora is not None else None
    hardware = hardware or detect()
    limits = parse_budget(budget)
    place = whole_name(default_device(hardware) if device is None else device)
    if context is not None and (isinstance(context, bool) or not isinstance(context, int) or context < 1):
        raise PlanError(f"context={context!r} is not a number of tokens", "context", "give a whole number from 1 on")
    placed = rules if isinstance(rules, PlacedRules) else None
    rules = rules if placed is None else placed.rules
    is_auto = isinstance(rules, str) and rules == "auto"
    written = not is_auto and not _is_packaged(rules)
    seeds: dict[str, torch.device] = {}
    if is_auto:
        parsed, seeds = auto_rules(model, limits, hardware, place, context, fills=placed is None)
    else:
        parsed = _parsed(rules)
    if placed is not None:
        parsed = place_rules(placed, parsed, model, place)
    for note in parsed.notes:
        logger.warning("%s", note)
    make = partial(
        make_plan,
        model,
        sources=sources,
        hardware=hardware,
        budget=limits,
        device=place,
        seeds=seeds,
        context_tokens=context,
        keep_original=keep_original,
        lenient=is_auto,
        adapter=adapter,
        kv=kv_format,
    )
    plan = make(parsed)
    # Originals in RAM would hold the very bytes that streaming leaves on the drive.
    if not written and not keep_original:
        plan = stream_to_fit(plan, parsed, make)
    plan.cache_options, plan.profile = options, profile_file
    missing = native_reason() if kv_format != AS_COMPUTED else None
    if missing is not None:
        fault = Fault(f"{kv_format} is stored by the native library, which is {missing}", "kv", 'leave it at kv="f32"')
        plan.add_problem(HardwareError, [fault])
    if profile_file is not None and not plan.streams:
        logger.warning("nothing is streamed, so nothing is read from the profile %s or saved to it", profile)
    return plan


def default_device(hardware: Hardware) -> str:
    """The first GPU where there is one, else the CPU."""
    return f"cuda:{hardware.gpus[0].index}" if hardware.gpus else "cpu"


def _is_packaged(rules: RulesArgument) -> bool:
    """Whether the rules are one of the files that come with ktitan, by name."""
    return isinstance(rules, str) and not os.path.exists(rules) and packaged_rules(rules) is not None


def _parsed(rules: RulesArgument) -> RuleSet:
    if isinstance(rules, RuleSet):
        return rules
    if isinstance(rules, str | Path):
        path = Path(rules)
        return parse_rules(path if os.path.exists(path) else packaged_rules(str(rules)) or path)
    return parse_object(rules, "<rules>")
