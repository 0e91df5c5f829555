"""LoRA adapters in PEFT's layout: adapter_config.json beside adapter_model.safetensors.

A pair adapts the linear module at <path> by y += scaling * B (A x), with A [r, in] stored as
`base_model.model.<path>.lora_A.weight`, B [out, r] as `...lora_B.weight`, and scaling = lora_alpha / r, or
lora_alpha / sqrt(r) with `use_rslora` (PEFT, src/peft/tuners/lora/layer.py and src/peft/utils/save_and_load.py;
https://arxiv.org/abs/2106.09685, https://arxiv.org/abs/2312.03732).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch

from ktitan.errors import Fault, UnsupportedError, WeightError
from ktitan.weights.adapter_config import AdapterConfig, read_adapter_config
from ktitan.weights.safetensors_source import SafetensorsSource, open_safetensors
from ktitan.weights.source import TensorInfo

__all__ = ["Adapter", "LowRankPair", "open_adapter"]

WEIGHTS_NAME, PICKLED_NAME = "adapter_model.safetensors", "adapter_model.bin"
PREFIX, A_SUFFIX, B_SUFFIX = "base_model.model.", ".lora_A.weight", ".lora_B.weight"

_PAIRS_ONLY = f"train and save only low-rank pairs of linear modules ({PREFIX}<path>{A_SUFFIX})"

# What PEFT stores beside pairs, by a mark in the name: what it is, and the remedy.
_OTHERS = {
    "lora_embedding_": ("adapts an embedding", _PAIRS_ONLY),
    "lora_magnitude_vector": ("is a magnitude of DoRA", _PAIRS_ONLY),
    ".token_adapter.": ("trains single tokens of an embedding", _PAIRS_ONLY),
    ".lora_A.bias": ("is a bias of an adapter", _PAIRS_ONLY),
    ".lora_B.bias": ("is a bias of an adapter", _PAIRS_ONLY),
    ".base_layer.lora_": ("adapts a parameter inside a module", _PAIRS_ONLY),
    ".base_layer.": (
        "is a copy of the model's own weights",
        "save the adapter with save_pretrained(..., save_embedding_layers=False)",
    ),
}


@dataclass(frozen=True)
class LowRankPair:
    """A and B of one module.

    Attributes:
        path: dotted path of the module in the stock model.
        a: stored tensor of shape [rank, in].
        b: stored tensor of shape [out, rank].
        scaling: what B (A x) is multiplied by.
    """

    path: str
    a: TensorInfo
    b: TensorInfo
    scaling: float

    @property
    def rank(self) -> int:
        """Rows of A."""
        return self.a.shape[0]

    @property
    def held_bytes(self) -> int:
        """Bytes of both in float32, as they are held."""
        return 4 * sum(torch.Size(info.shape).numel() for info in (self.a, self.b))


@dataclass
class Adapter:
    """An adapter of which headers and config have been read.

    Attributes:
        path: its folder.
        base: the model that it was made for, as its config says; "" when it does not.
        source: its tensors.
        pairs: what it adapts, by path.
        unsupported, broken: what is wrong with it, for the plan to report with all else.
    """

    path: str
    base: str
    source: SafetensorsSource
    pairs: dict[str, LowRankPair] = field(default_factory=dict)
    unsupported: list[Fault] = field(default_factory=list)
    broken: list[Fault] = field(default_factory=list)

    def read(self, pair: LowRankPair, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """A [rank, in] and B [out, rank] in float32 on `device`.

        Raises:
            IoError: the file could not be read.
        """
        held = []
        for info in (pair.a, pair.b):
            tensor = torch.empty(info.shape, dtype=torch.float32)
            self.source.read_into(info.name, tensor)
            held.append(tensor.to(device))
        return held[0], held[1]


def open_adapter(path: str | Path) -> Adapter:
    """Read an adapter's config and header; what is wrong inside is collected in the result.

    Raises:
        WeightError: it is no folder with an adapter's two files.
        FormatError: one of them is broken.
        UnsupportedError: several adapters are given.
    """
    if not isinstance(path, str | Path):
        raise UnsupportedError("several adapters at once are not applied", "lora", "merge them with peft, or give one")
    folder = Path(path)
    config = read_adapter_config(folder)
    if not (folder / WEIGHTS_NAME).is_file():
        message, remedy = f"holds no {WEIGHTS_NAME}", "give the folder that peft's save_pretrained wrote"
        if (folder / PICKLED_NAME).is_file():
            message = f"its weights are pickled ({PICKLED_NAME}), which is not read: a pickle can run code"
            remedy = "load the adapter with peft and save it again with save_pretrained: that writes safetensors"
        raise WeightError(message, str(folder), remedy)
    source = open_safetensors(folder / WEIGHTS_NAME)
    adapter = Adapter(str(folder), config.base, source, unsupported=list(config.unsupported))
    _collect(adapter, config)
    return adapter


def _collect(adapter: Adapter, config: AdapterConfig) -> None:
    """Sort the tensors into pairs; everything that is not half of one is a fault."""
    halves: dict[str, dict[str, TensorInfo]] = {}
    others: dict[tuple[str, str], list[str]] = {}
    for name, info in adapter.source.tensors.items():
        suffix = name[-len(A_SUFFIX) :]
        reason = next((reason for mark, reason in _OTHERS.items() if mark in name), None)
        if reason is None and (not name.startswith(PREFIX) or suffix not in (A_SUFFIX, B_SUFFIX)):
            reason = ("is no A or B of a linear module", _PAIRS_ONLY)
        if reason is not None:
            others.setdefault(reason, []).append(name)
        else:
            halves.setdefault(name[len(PREFIX) : -len(suffix)], {})[suffix] = info
    for (what, remedy), names in others.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        adapter.unsupported.append(Fault(f"{what}, which is not applied{more}", names[0], remedy))
    if not adapter.source.tensors:
        adapter.broken.append(Fault("holds no tensors", adapter.path, "save the adapter again"))
    for path, found in sorted(halves.items()):
        fault = _pair_fault(path, found, config)
        if fault is not None:
            adapter.broken.append(fault)
        else:
            scaling = config.scaling(path)
            adapter.pairs[path] = LowRankPair(path, found[A_SUFFIX], found[B_SUFFIX], scaling)


def _pair_fault(path: str, found: dict[str, TensorInfo], config: AdapterConfig) -> Fault | None:
    """Why the halves that were found at `path` are no pair of the rank that the config gives it."""
    for suffix, other in ((A_SUFFIX, B_SUFFIX), (B_SUFFIX, A_SUFFIX)):
        if suffix not in found:
            return Fault(f"there is a {other[1:]} but no {suffix[1:]}", path, "save the adapter again")
    a, b = found[A_SUFFIX], found[B_SUFFIX]
    if not {a.format, b.format} <= {"f32", "f16", "bf16", "f64"}:
        return Fault(f"A and B are stored as {a.format} and {b.format}", path, "save the adapter in floating point")
    rank = config.rank(path)
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != rank or b.shape[1] != rank:
        message = f"A has shape {a.shape} and B {b.shape}, not ({rank}, in) and (out, {rank}) as its config says"
        return Fault(message, path, "use the adapter_config.json that was saved with these weights")
    return None
