"""adapter_config.json of PEFT: rank and scaling by module, and every setting that would change the numbers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ktitan.errors import Fault, FormatError, WeightError

__all__ = ["CONFIG_NAME", "AdapterConfig", "read_adapter_config"]

CONFIG_NAME = "adapter_config.json"

# Settings that say where an adapter comes from, how it was trained, or what its tensors say as well.
_ORIGIN = {"auto_mapping", "base_model_name_or_path", "peft_type", "peft_version", "revision", "task_type"}
_TRAINING = {"corda_config", "eva_config", "inference_mode", "loftq_config", "lora_dropout", "lora_ga_config"}
_TARGETS = {"exclude_modules", "layers_pattern", "layers_to_transform", "target_modules", "ensure_weight_tying"}
_FOLLOWED = {"alpha_pattern", "lora_alpha", "r", "rank_pattern", "use_rslora"}
_IDLE = {"fan_in_fan_out", "megatron_core", "qalora_group_size", "runtime_config"}
_HARMLESS = _ORIGIN | _TRAINING | _TARGETS | _FOLLOWED | _IDLE

# Settings that change what is computed, and what they mean.
_MEANINGS = {
    "alora_invocation_tokens": "adapts only the tokens after an invocation",
    "bias": "trains biases of the model",
    "layer_replication": "repeats layers of the model",
    "lora_bias": "adds biases to the adapter",
    "modules_to_save": "replaces whole modules of the model",
    "target_parameters": "adapts parameters such as fused experts, not linear modules",
    "trainable_token_indices": "trains single tokens of an embedding",
    "use_dora": "is DoRA, which rescales the model's weights",
    "use_qalora": "is QALoRA, which pools the input",
}

# Initialisations that leave the model's own weights as they are.
_PLAIN_STARTS = (None, True, False, "gaussian", "eva", "orthogonal")


@dataclass(frozen=True)
class AdapterConfig:
    """What is used of the file; `unsupported` holds the settings that cannot be followed."""

    base: str
    default_rank: int
    default_alpha: float
    by_root: bool
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]
    unsupported: list[Fault] = field(default_factory=list)

    def rank(self, path: str) -> int:
        """r of the module at `path`."""
        return int(_lookup(self.ranks, path, self.default_rank))

    def scaling(self, path: str) -> float:
        """lora_alpha / r of the module at `path`, or lora_alpha / sqrt(r)."""
        rank = self.rank(path)
        return _lookup(self.alphas, path, self.default_alpha) / (math.sqrt(rank) if self.by_root else rank)


def _lookup(patterns: Mapping[str, float], path: str, default: float) -> float:
    """The value of the first pattern that matches the end of `path`, from a dot on (peft.utils.get_pattern_key)."""
    return next((value for key, value in patterns.items() if re.match(_whole(key), path)), default)


def _whole(key: str) -> str:
    return rf"(.*\.)?({key})$"


def read_adapter_config(folder: Path) -> AdapterConfig:
    """Read the config in `folder`.

    Raises:
        WeightError: there is none.
        FormatError: it is not a valid one; all that is wrong with its values at once.
    """
    file = folder / CONFIG_NAME
    try:
        values = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise WeightError(
            f"no {CONFIG_NAME} can be read: {error.strerror or error}",
            str(folder),
            "give the folder that peft's save_pretrained wrote",
        ) from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not valid JSON: {error}", str(file), "save the adapter again") from error
    if not isinstance(values, dict):
        raise FormatError("holds no JSON object", str(file), "save the adapter again")
    where = str(file)
    if values.get("peft_type") != "LORA":
        fault = Fault(
            f"is an adapter of type {values.get('peft_type')!r}, not LORA", where, "merge it into the model with peft"
        )
        return AdapterConfig(str(values.get("base_model_name_or_path") or ""), 1, 1.0, False, {}, {}, [fault])
    faults = _value_faults(values, where)
    if faults:
        raise FormatError.from_faults(faults, f"{len(faults)} values of {where} cannot be used")
    return AdapterConfig(
        base=str(values.get("base_model_name_or_path") or ""),
        default_rank=values["r"],
        default_alpha=values["lora_alpha"],
        by_root=bool(values.get("use_rslora")),
        ranks=values.get("rank_pattern") or {},
        alphas=values.get("alpha_pattern") or {},
        unsupported=_unsupported(values, where),
    )


def _is_rank(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_number(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that is no float
        return False


def _value_faults(values: Mapping[str, Any], where: str) -> list[Fault]:
    remedy = "use the file that peft wrote"
    faults = []
    if not _is_rank(values.get("r")):
        faults.append(Fault(f"r is {values.get('r')!r}, not a rank", where, remedy))
    if not _is_number(values.get("lora_alpha")):
        faults.append(Fault(f"lora_alpha is {values.get('lora_alpha')!r}, not a number", where, remedy))
    for name, fits in (("rank_pattern", _is_rank), ("alpha_pattern", _is_number)):
        patterns = values.get(name) or {}
        if not isinstance(patterns, dict):
            faults.append(Fault(f"{name} is {patterns!r}, not a table", where, remedy))
            continue
        for key, value in patterns.items():
            if not fits(value) or not _is_pattern(key):
                faults.append(Fault(f"{name} says {value!r} for {key!r}", where, remedy))
    return faults


def _is_pattern(text: str) -> bool:
    try:
        re.compile(_whole(text))
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def _unsupported(values: Mapping[str, Any], where: str) -> list[Fault]:
    """Settings in use that change the numbers, and those that nothing is known about."""
    faults = []
    for name, value in values.items():
        if name in _HARMLESS or not value or (name == "bias" and value == "none"):
            continue
        if name == "init_lora_weights":
            if value not in _PLAIN_STARTS:
                message = f"init_lora_weights {value!r} is not known to leave the model's weights as they are"
                remedy = "convert it with peft: save_pretrained(path_initial_model_for_weight_conversion=...)"
                faults.append(Fault(message, where, remedy))
            continue
        meaning = _MEANINGS.get(name, "may change what is computed")
        remedy = "merge the adapter into the model with peft's merge_and_unload, or train one without"
        faults.append(Fault(f"{name} {meaning}, which is not applied", where, remedy))
    return faults
