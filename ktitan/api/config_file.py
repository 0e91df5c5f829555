"""config.json before transformers sees it: what it would follow into a hang or a crash is refused, all at once."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedConfig
from transformers import __version__ as transformers_version
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ktitan.errors import Fault, FormatError, UnsupportedError
from ktitan.registry import nearest
from ktitan.weights.foreign import refused
from ktitan.weights.json_files import read_json

__all__ = ["CONFIG_NAME", "load_config", "own_code_message"]

CONFIG_NAME = "config.json"
MAX_CONFIG_BYTES = 16 << 20
MAX_DEPTH = 32
# Modules are built for each layer, even on meta: a file's word is not taken for more of them than any model has.
MAX_LAYERS = 4096
MAX_EXPERTS = 65536
LARGEST = 2**40
# transformers writes a name for each, whether the model has a use for them or not.
MAX_LABELS = 65536
LAYER_COUNTS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "decoder_layers", "encoder_layers")
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk")
SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "moe_intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "n_embd",
    "n_head",
    "d_model",
)
LIMITS = {
    **dict.fromkeys(SIZES, LARGEST),
    **dict.fromkeys(LAYER_COUNTS, MAX_LAYERS),
    **dict.fromkeys(EXPERT_COUNTS, MAX_EXPERTS),
    "num_labels": MAX_LABELS,
}
# Numbers that must be finite; the first kind may be 0.
EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon")
BASES = ("rope_theta",)
NATIVE_REMEDY = (
    "ktitan has no option to run a model's own code: use a checkpoint whose model_type transformers knows, or, where "
    "the model computes like one of these, write that model_type into config.json"
)


def load_config(home: Path) -> PreTrainedConfig:
    """The config in the folder `home`; code in the folder is never run.

    Raises:
        FormatError: it is no JSON object, or has sizes that no model can have (all of them at once).
        UnsupportedError: transformers does not know the model, or its values.
        WeightError, IoError: the file is not there or cannot be read.
    """
    path = home / CONFIG_NAME
    stated = read_json(path, MAX_CONFIG_BYTES)
    faults = list(_faults(stated, str(path)))
    if faults:
        raise FormatError.from_faults(faults, f"{len(faults)} values of {path} cannot be")
    _check_type(stated, path)
    message = "its config cannot be used"
    with refused(UnsupportedError, message, path, "update transformers, or check the value that is named"):
        config: PreTrainedConfig = AutoConfig.from_pretrained(home, trust_remote_code=False, local_files_only=True)
    return config


def own_code_message(stated: Mapping[str, Any]) -> str:
    """A sentence on the Python code that a config names; empty when it names none."""
    code = stated.get("auto_map")
    return f"it names code of its own (auto_map: {json.dumps(code)[:120]}), which is never run" if code else ""


def _check_type(stated: Mapping[str, Any], path: Path) -> None:
    kind = stated.get("model_type")
    if isinstance(kind, str) and kind in CONFIG_MAPPING:
        return
    if not isinstance(kind, str) or not kind:
        raise FormatError(
            "model_type is missing, or no text; nothing else says which model this is",
            str(path),
            'add the "model_type" of its family, such as "llama"; nothing is assumed',
        )
    own = own_code_message(stated)
    near = nearest(kind, CONFIG_MAPPING.keys()) if not own else ""
    near = near if near.startswith("did you mean") else ""
    raise UnsupportedError(
        f"model_type {kind!r} is not known to transformers {transformers_version}" + (f"; {own}" if own else ""),
        str(path),
        f"{near} update transformers; {NATIVE_REMEDY}".strip(),
    )


def _faults(value: Any, where: str, place: str = "", depth: int = 0) -> Iterator[Fault]:
    """Counts and sizes that cannot be, here and in the configs inside (`text_config`)."""
    if depth > MAX_DEPTH:
        yield Fault(f"{place[:80]}... is nested deeper than {MAX_DEPTH} levels", where, "download the file again")
        return
    for name, entry in value.items():
        full = f"{place}.{name}" if place else name
        if isinstance(entry, dict):
            yield from _faults(entry, where, full, depth + 1)
        elif name in LIMITS:
            yield from _number_faults(full, entry, LIMITS[name], where)
        elif name in EPSILONS or name in BASES:
            yield from _real_faults(full, entry, name in BASES, where)
    yield from _choice_faults(value, where, place)


def _choice_faults(value: dict[str, Any], where: str, place: str) -> Iterator[Fault]:
    """More experts chosen for a token than there are, and groups that they do not fall into."""
    counts = [value[name] for name in EXPERT_COUNTS if type(value.get(name)) is int and value[name] > 0]
    for name in CHOSEN:
        if counts and type(value.get(name)) is int and value[name] > max(counts):
            full = f"{place}.{name}" if place else name
            yield Fault(f"{full} is {value[name]}, there are {max(counts)} experts", where, "download the file again")
    groups, chosen = value.get("n_group"), value.get("topk_group")
    if type(groups) is not int or groups < 1:
        return
    full = f"{place}.n_group" if place else "n_group"
    if counts and max(counts) % groups:
        yield Fault(
            f"{full} is {groups}, which does not divide {max(counts)} experts", where, "download the file again"
        )
    if type(chosen) is int and chosen > groups:
        yield Fault(f"{full} is {groups}, topk_group {chosen}", where, "download the file again")


def _real_faults(name: str, value: Any, positive: bool, where: str) -> Iterator[Fault]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return  # transformers says what it wants
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        yield Fault(f"{name} is {value}, not a number from 0 on", where, "download the file again")


def _number_faults(name: str, value: Any, most: int, where: str) -> Iterator[Fault]:
    if value is None or isinstance(value, list):  # the class's own default, or one a layer
        return
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        yield Fault(
            f"{name} is {repr(value)[:40]}, not a whole number from 1 to {most}", where, "download the file again"
        )
