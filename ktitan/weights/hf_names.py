"""Checkpoint names of HuggingFace models -> tensors of the stock module, by transformers' own conversion mapping.

Renames, and the two operations that nearly all mixture-of-experts families use (stack a list of experts, join gate and
up), become expressions that read byte ranges. Any other operation is run by transformers itself over whole tensors.
"""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

from ktitan.errors import Fault, WeightError
from ktitan.formats import find_format
from ktitan.weights.expression import Concat, Converted, Expression, Stack, Stored
from ktitan.weights.source import WeightSource

__all__ = ["hf_bindings"]

Sources = dict[str | None, list[str]]


def hf_bindings(model: nn.Module, source: WeightSource) -> tuple[dict[str, Expression], list[str], list[Fault]]:
    """How `source` fills the tensors of the stock `model`.

    Returns:
        The expression of each filled tensor by its name in `model.state_dict()`, the stored names that nothing uses,
        and the names that two stored tensors claim.
    """
    state = model.state_dict()
    renamings, converters = _mapping(model)
    grouped: dict[str, Sources] = defaultdict(lambda: defaultdict(list))
    for key in sorted(source.tensors, key=dot_natural_key):
        target, pattern = _rename(key, renamings, converters, model, state)
        grouped[target][pattern].append(key)
    by_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
    bindings: dict[str, Expression] = {}
    surplus: list[str] = []
    faults: list[Fault] = []
    for target, sources in grouped.items():
        keys = [key for names in sources.values() for key in names]
        if None in sources:
            if target not in state:
                surplus += _not_ignored(model, keys)
            elif len(keys) > 1:
                faults.append(Fault(f"claimed by {' and '.join(keys)}", target, "remove one of the two tensors"))
            else:
                bindings[target] = Stored(source, source.tensors[keys[0]])
            continue
        made = _converted(model, source, target, sources, by_pattern, state)
        bindings.update(made)
        if not made:
            surplus += _not_ignored(model, keys)
    return bindings, surplus, faults


def _mapping(model: nn.Module) -> tuple[list[WeightRenaming], list[WeightConverter]]:
    """Transformers' renamings and converters for this model, as copies (they keep state while they are used)."""
    if not isinstance(model, PreTrainedModel):
        return [], []
    every = copy.deepcopy(get_model_conversion_mapping(model))
    renamings = [one for one in every if isinstance(one, WeightRenaming)]
    return renamings, [one for one in every if isinstance(one, WeightConverter)]


def _rename(
    key: str,
    renamings: list[WeightRenaming],
    converters: list[WeightConverter],
    model: nn.Module,
    state: dict[str, torch.Tensor],
) -> tuple[str, str | None]:
    prefix = getattr(model, "base_model_prefix", None)
    target, pattern = rename_source_key(key, renamings, converters, prefix, state)
    if target not in state and key in state:
        # A key that is native already may be hit by a renaming meant for older files; the stock loader does the same.
        target, pattern = rename_source_key(key, [], [], prefix, state)
    return target, pattern


def _converted(
    model: nn.Module,
    source: WeightSource,
    target: str,
    sources: Sources,
    by_pattern: dict[str, WeightConverter],
    state: dict[str, torch.Tensor],
) -> dict[str, Expression]:
    """The expressions that one converter's sources make (usually one; a chunking converter makes several)."""
    converter = by_pattern[next(pattern for pattern in sources if pattern is not None)]
    parts = {
        pattern: [Stored(source, source.tensors[key]) for key in keys]
        for pattern, keys in sources.items()
        if pattern is not None
    }
    simple = _fused_experts(converter, parts) if target in state else None
    if simple is not None:
        return {target: simple}
    targets = [name for name in _targets_of(converter, target) if name in state]
    flat = [part for group in parts.values() for part in group]
    shapes = {name: tuple(state[name].shape) for name in targets}
    return {
        name: Converted(flat, shape, partial(_run, converter, target, parts, model, name, shape))
        for name, shape in shapes.items()
    }


def _fused_experts(converter: WeightConverter, parts: dict[str, list[Stored]]) -> Expression | None:
    """Stack(dim 0) and optionally Concatenate as an expression; None for any other chain of operations."""
    merge, *rest = converter.operations
    if not (isinstance(merge, MergeModulelist) and merge.dim == 0):
        return None
    join = rest[0] if len(rest) == 1 and isinstance(rest[0], Concatenate) else None
    if rest and join is None:
        return None
    ordered = [Stack(parts[pattern]) for pattern in converter.source_patterns if pattern in parts]
    if join is None:
        return ordered[0] if len(ordered) == 1 else None
    # Stacks of unequal length miss experts: any join will do, the shape is found wrong and the gaps are named.
    return Concat(ordered, join.dim if len({len(stack.parts) for stack in ordered}) == 1 else 0)


def _targets_of(converter: WeightConverter, target: str) -> list[str]:
    """Full names of everything the converter makes, given the one that the keys were renamed to."""
    first = converter.target_patterns[0]
    if len(converter.target_patterns) == 1 or first not in target:
        return [target]
    head, _, tail = target.partition(first)
    return [head + pattern + tail for pattern in converter.target_patterns]


def _run(
    converter: WeightConverter,
    target: str,
    parts: dict[str, list[Stored]],
    model: nn.Module,
    name: str,
    shape: tuple[int, ...],
) -> torch.Tensor:
    """Let transformers convert the stored tensors, and pick the one called `name`, which is to have `shape`.

    Raises:
        WeightError: it cannot; shapes are known only now.
    """
    fresh = copy.deepcopy(converter)
    for pattern, group in parts.items():
        for part in group:
            fresh.add_tensor(target, part.info.name, pattern, _reader(part))
    try:
        made: dict[str, Any] = fresh.convert(target, model=model, config=getattr(model, "config", None))
        value: torch.Tensor = made[name][0] if isinstance(made[name], list) else made[name]
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        stored = ", ".join(f"{part.info.name} {list(part.shape)}" for group in parts.values() for part in group[:2])
        raise WeightError(
            f"transformers cannot make it of {stored}: {error}", name, "config and weights are of different checkpoints"
        ) from error
    if tuple(value.shape) != shape:
        raise WeightError(
            f"transformers makes it {list(value.shape)}, the model has {list(shape)}",
            name,
            "config and weights are of different checkpoints",
        )
    return value


def _reader(part: Stored) -> Any:
    """What transformers takes in place of a future: a function that reads the tensor when its turn comes."""
    dtype = find_format(part.info.format, part.info.name).torch_dtype or torch.float32
    return lambda: part.dense(dtype)


def _not_ignored(model: nn.Module, keys: Iterable[str]) -> list[str]:
    """Keys that neither the model's class nor its layers for multi-token prediction explain."""
    patterns = [re.compile(pattern) for pattern in getattr(model, "_keys_to_ignore_on_load_unexpected", None) or []]
    config = getattr(model, "config", None)
    layers = getattr(config, "num_hidden_layers", None)
    predictors = getattr(config, "num_nextn_predict_layers", 0) or 0
    kept = []
    for key in keys:
        index = re.search(r"(?:^|\.)layers\.(\d+)\.", key)
        beyond = layers is not None and index is not None and 0 <= int(index.group(1)) - layers < predictors
        rotary = key.endswith("rotary_emb.inv_freq")  # old checkpoints stored what is now computed
        if not beyond and not rotary and not any(pattern.search(key) for pattern in patterns):
            kept.append(key)
    return kept
