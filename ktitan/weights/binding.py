"""Which source fills which tensor of the stock model, with everything that does not fit found at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from ktitan.errors import Fault
from ktitan.formats import formats
from ktitan.formats.plain import plain_name
from ktitan.weights.expression import Converted, Expression, Held, Stack
from ktitan.weights.gguf_names import gguf_bindings
from ktitan.weights.gguf_source import GgufSource
from ktitan.weights.hf_names import hf_bindings
from ktitan.weights.live_source import LiveSource
from ktitan.weights.native_source import NativeSource
from ktitan.weights.source import WeightSource

__all__ = ["WeightMap", "bind"]

ONE_CHECKPOINT = "config and weights are of different checkpoints: take both from one"


@dataclass
class WeightMap:
    """Expressions by the stock model's tensor names.

    Attributes:
        bindings: one expression a tensor.
        tied: tensors without bytes of their own -> the tensor whose bytes they share.
        faults: missing, surplus, mis-shaped and doubly claimed tensors.
        sources: all sources, in the order in which they are asked.
    """

    bindings: dict[str, Expression] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    sources: tuple[WeightSource, ...] = ()

    def close(self) -> None:
        """Close all sources."""
        for source in self.sources:
            source.close()


SourceChoice = Callable[[str], str | None]


def _any_source(name: str) -> str | None:
    return None


def bind(model: nn.Module, sources: Sequence[WeightSource], choose: SourceChoice = _any_source) -> WeightMap:
    """Map every tensor of `model` to the first source that has it.

    Args:
        model: the stock model, on meta or real.
        sources: asked in order.
        choose: for a tensor name, the source (its path or file name) that a rule demands, or None for any.
    """
    result = WeightMap(sources=tuple(sources))
    tables: list[tuple[WeightSource, dict[str, Expression]]] = []
    for source in sources:
        bindings, unused, faults = _names_of(model, source)
        tables.append((source, bindings))
        result.faults += [*faults, *(_surplus(model, source, name) for name in unused)]
    missing: dict[str, str | None] = {}
    claimed = {fault.where for fault in result.faults}
    for name, tensor in model.state_dict().items():
        if name in claimed:
            continue
        wanted = choose(name)
        found = next((table[name] for source, table in tables if name in table and _is_called(source, wanted)), None)
        if found is None:
            missing[name] = wanted
        elif found.uneven or found.shape != tuple(tensor.shape):
            result.faults.append(_misshaped(name, found, tuple(tensor.shape)))
        elif wrong := _unfit_format(found, tensor):
            result.faults.append(Fault(wrong, name, "give a checkpoint of plain floats, or a GGUF of the model"))
        else:
            result.bindings[name] = found
    partners = _partners(model)
    for name, wanted in missing.items():
        if partners.get(name) in result.bindings:
            result.tied[name] = partners[name]
        else:
            result.faults.append(_missing(name, wanted, sources))
    return result


def _names_of(model: nn.Module, source: WeightSource) -> tuple[dict[str, Expression], list[str], list[Fault]]:
    if isinstance(source, LiveSource):
        return source.bindings(), [], []
    if isinstance(source, NativeSource):
        bindings, state = source.bindings(), model.state_dict()
        return bindings, [name for name in bindings if name not in state], []
    if isinstance(source, GgufSource):
        return (*gguf_bindings(model, source), [])
    return hf_bindings(model, source)


def _partners(model: nn.Module) -> dict[str, str]:
    """Tied tensors of a transformers model, each way round: a file may hold either name of the two."""
    tied: Mapping[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    return {**{source: target for target, source in tied.items()}, **tied}


def _is_called(source: WeightSource, wanted: str | None) -> bool:
    return wanted is None or source.path == wanted or source.path.rstrip("/").rsplit("/", 1)[-1] == wanted


def _missing(name: str, wanted: str | None, sources: Sequence[WeightSource]) -> Fault:
    asked = wanted or ", ".join(source.path for source in sources) or "none given"
    return Fault(f"no source has it (asked: {asked})", name, "give the file that holds it as one of weights=[...]")


def _misshaped(name: str, found: Expression, shape: tuple[int, ...]) -> Fault:
    gaps = _gaps(found, shape)
    if gaps:
        return Fault(f"parts are missing: {gaps}", name, "the checkpoint is incomplete; download it again")
    if found.uneven:
        return Fault(found.uneven, name, "the checkpoint is damaged; download it again")
    return Fault(f"stored as {list(found.shape)}, the model has {list(shape)}", name, ONE_CHECKPOINT)


def _unfit_format(found: Expression, tensor: torch.Tensor) -> str:
    """Why what is stored cannot be the numbers of `tensor`; empty when it can, or when transformers converts it."""
    if isinstance(found, Converted | Held) or not tensor.is_floating_point():
        return ""
    for name in found.formats:
        stored = formats.find(name)
        if stored is None:
            return f"stored as {name}, which is not known"
        if stored.torch_dtype is not None and not stored.torch_dtype.is_floating_point:
            return f"stored as whole numbers ({name}), the model has {plain_name(tensor.dtype)}: a packed checkpoint?"
    return ""


def _gaps(found: Expression, shape: tuple[int, ...]) -> str:
    """Names of the experts that a stack lacks, e.g. "…experts.5.gate_proj.weight"; empty when that is not the fault."""
    stacks = [found] if isinstance(found, Stack) else [p for p in getattr(found, "parts", ()) if isinstance(p, Stack)]
    lacking = []
    for stack in stacks:
        if len(stack.parts) >= shape[0]:
            continue
        names = [leaf.info.name for leaf in stack.leaves()]
        template, present = _numbered(names)
        lacking += [template.replace("#", str(i)) for i in range(shape[0]) if i not in present]
    return ", ".join(lacking[:4]) + (f" and {len(lacking) - 4} more" if len(lacking) > 4 else "")


def _numbered(names: Sequence[str]) -> tuple[str, set[int]]:
    """The common name with `#` at the expert's number, and the numbers present; the number is the last whole one."""
    pattern = re.compile(r"^(.*\.)(\d+)(\..*)$")
    matches = [match for match in map(pattern.match, names) if match]
    if not matches:
        return "#", set()
    return f"{matches[0][1]}#{matches[0][3]}", {int(match[2]) for match in matches}


def _surplus(model: nn.Module, source: WeightSource, name: str) -> Fault:
    message = f"the model has no place for it (in {source.path})"
    if re.fullmatch(r"(.*\.)?(lm_head|output|score|classifier)\..*", name):
        kind = type(model).__name__
        remedy = (
            f"it is the head of a larger class than {kind}: use AutoModelForCausalLM, whose base model is its .model"
        )
        return Fault(message, name, remedy)
    return Fault(message, name, ONE_CHECKPOINT)
