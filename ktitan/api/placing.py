"""Placing by hand, as people know it from llama.cpp: so many layers on the GPU, experts on the CPU, tensors by name.

What the options mean there (ggml-org/llama.cpp: `load_tensors` in src/llama-model.cpp, common/arg.cpp and
common/common.h):

- `-ngl N`: `i_gpu_start = max(n_layer + 1 - N, 0)`: the output counts as the last of n_layer + 1 layers, and the last N
  of these go to the GPU; the input embedding always stays on the CPU.
- `--n-cpu-moe N`: tensors that `blk\\.I\\.ffn_(up|down|gate|gate_up)_(ch|)exps` finds stay on the CPU for I < N;
  `--cpu-moe`: of all layers.
- `-ot REGEX=BUFFER`: the regex is searched in a tensor's name; the first one that finds it wins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ktitan.errors import Fault, RuleError
from ktitan.plan.visit import class_names
from ktitan.rules import Location, Placement, RuleSet, place_first
from ktitan.weights.gguf_modules import gguf_tensor_names

__all__ = ["ALL_LAYERS", "PlacedRules", "place_rules"]

ALL_LAYERS = 1 << 30

_LAYER = re.compile(r"(?:.+\.)?layers\.(\d+)")
_EXPERTS = re.compile(r"(?:.+\.)?layers\.(\d+)\.(?:.+\.)?experts")
_EMBEDDING, _OUTPUT = re.compile(r"(?:.+\.)?embed_tokens"), re.compile(r"(?:.+\.)?norm|lm_head")
_BUFFER = re.compile(r"(?P<cpu>cpu|cuda_host)|cuda:?(?P<index>[0-9]{1,2})", re.IGNORECASE)


@dataclass(frozen=True)
class PlacedRules:
    """Rules with placements before them; the budget fill of "auto" is off, since somebody places by hand.

    Attributes:
        rules: whatever else `rules=` takes.
        gpu_layers: `-ngl`: so many of the last layers, the output being one, on the GPU; None: all where `device` says.
        cpu_experts: the routed experts of the first so many layers on the CPU.
        tensors: `-ot`: "REGEX=DEVICE", where the regex finds GGUF names of tensors.
    """

    rules: Any = "auto"
    gpu_layers: int | None = None
    cpu_experts: int | None = None
    tensors: tuple[str, ...] = ()


def place_rules(wanted: PlacedRules, rules: RuleSet, model: nn.Module, device: str) -> RuleSet:
    """`rules` with the placements of `wanted` before them, for `model`; `device` is where modules without a rule go.

    Raises:
        RuleError: a tensor override cannot be read, finds nothing, or finds a part of a module; all at once.
        UnsupportedError: the model's family has no GGUF names.
    """
    modules = {path: class_names(type(module)) for path, module in model.named_modules() if path}
    placements = _tensor_placements(wanted.tensors, model) if wanted.tensors else []
    if wanted.cpu_experts is not None:
        count = wanted.cpu_experts
        option = "--cpu-moe" if count == ALL_LAYERS else f"--n-cpu-moe {count}"
        layers = {path: int(found[1]) for path in modules if (found := _EXPERTS.fullmatch(path))}
        if not layers:
            raise RuleError("the model has no routed experts", option, "leave it out")
        paths = tuple(path for path, number in layers.items() if number < count)
        placements.append(Placement(paths, "cpu", Location(option)))
    if wanted.gpu_layers is not None:
        placements += _layer_placements(wanted.gpu_layers, modules, device)
    return place_first(rules, placements, modules)


def _layer_placements(count: int, modules: Mapping[str, Any], device: str) -> list[Placement]:
    option = Location("-ngl all" if count == ALL_LAYERS else f"-ngl {count}")
    layers = {path: int(found[1]) for path in modules if (found := _LAYER.fullmatch(path))}
    first = max(max(layers.values(), default=-1) + 2 - count, 0)
    ends = [path for path in modules if _OUTPUT.fullmatch(path) and ".layers." not in f".{path}"]
    cpu = [path for path in modules if _EMBEDDING.fullmatch(path)]
    cpu += [path for path, number in layers.items() if number < first] + (ends if not count else [])
    gpu = [path for path, number in layers.items() if number >= first] + (ends if count else [])
    place = device if device.startswith("cuda") else "cuda:0"
    made = [Placement(tuple(cpu), "cpu", option)]
    return [*made, Placement(tuple(gpu), place, option)] if count else made


def _tensor_placements(texts: tuple[str, ...], model: nn.Module) -> list[Placement]:
    names = gguf_tensor_names(model)
    faults: list[Fault] = []
    placements = []
    for text in texts:
        where = f"-ot {text}"
        pattern, device, why = _read_override(text)
        paths = [] if pattern is None else _found(pattern, names, where, faults)
        if why or (not paths and not any(fault.where == where for fault in faults)):
            example = next(iter(names.values()))[0]
            faults.append(Fault(why or "finds no tensor of this model", where, f"tensors are called like {example}"))
        placements.append(Placement((*_whole_parents(paths, names), *paths), device, Location(where)))
    if faults:
        raise RuleError.from_faults(faults, f"{len(faults)} tensor overrides cannot be followed")
    return placements


def _read_override(text: str) -> tuple[re.Pattern[str] | None, str, str]:
    """Regex, device, and why it cannot be read."""
    regex, _, buffer = text.rpartition("=")
    place = _BUFFER.fullmatch(buffer)
    if not regex or place is None:
        return None, "cpu", f"{buffer!r} is no place here: write REGEX=CPU or REGEX=CUDA0"
    try:
        return re.compile(regex), "cpu" if place["cpu"] else f"cuda:{int(place['index'])}", ""
    except re.error as error:
        return None, "cpu", f"bad regex {regex!r}: {error.msg}"


def _found(
    pattern: re.Pattern[str], names: Mapping[str, tuple[str, ...]], where: str, faults: list[Fault]
) -> list[str]:
    """Modules whose tensors are all found; a module of which only some are is a fault, told once."""
    paths = []
    for path, tensors in names.items():
        found = [name for name in tensors if pattern.search(name)]
        if len(found) == len(tensors):
            paths.append(path)
        elif found and not any(fault.where == where for fault in faults):
            others = ", ".join(name for name in tensors if name not in found)
            message = f"finds {', '.join(found)} but not {others}, which are one module here ({path})"
            faults.append(Fault(message, where, "write a regex that finds all of them"))
    return paths


def _whole_parents(paths: list[str], names: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Modules below which every weight is found: what they compute between the weights moves with them."""
    found, parents = set(paths), {path.rpartition(".")[0] for path in paths}
    below = {parent: [path for path in names if path.startswith(f"{parent}.")] for parent in parents if parent}
    return sorted(parent for parent, inner in below.items() if found.issuperset(inner))
