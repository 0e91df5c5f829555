"""The stock model on meta, its config, tokenizer and generation config, from files."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ktitan.api.locate import ModelFiles
from ktitan.api.text_only import leave_out_other_parts, refuse_without_text
from ktitan.errors import UnsupportedError, WeightError
from ktitan.hardware import Hardware
from ktitan.weights.gguf_config import config_from_gguf, generation_config_from_gguf
from ktitan.weights.gguf_router import router_notes, set_routers
from ktitan.weights.gguf_source import GgufSource
from ktitan.weights.gguf_tokenizer import tokenizer_from_gguf
from ktitan.weights.source import WeightSource

__all__ = [
    "build_model",
    "build_tokenizer",
    "choose_dtype",
    "generation_config_of",
    "is_packed",
    "notes_of",
    "read_config",
]

logger = logging.getLogger(__name__)

# What transformers raises for a config.json that is not one: it validates little, and late.
_CONFIG_FAULTS = (
    StrictDataclassError,
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    ZeroDivisionError,
    RuntimeError,
)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def read_config(files: ModelFiles, sources: list[WeightSource]) -> PreTrainedConfig:
    """The config beside the weights, or that of a GGUF's metadata.

    Raises:
        UnsupportedError: an architecture that transformers or the GGUF reader does not know, or a packed checkpoint.
        WeightError: there is no config.
    """
    if files.home is None:
        source = next((one for one in sources if isinstance(one, GgufSource)), None)
        if source is None:
            raise WeightError("no config.json beside the weights", files.name, "give the folder that holds both")
        return config_from_gguf(source)
    try:
        config = AutoConfig.from_pretrained(files.home)
    except _CONFIG_FAULTS as error:
        raise UnsupportedError(
            f"its config cannot be used: {type(error).__name__}: {error}",
            str(files.home / "config.json"),
            "update transformers, or check the file",
        ) from error
    _refuse_packed(config, files)
    return config


def is_packed(config: PreTrainedConfig) -> bool:
    """Whether the checkpoint that the config describes is quantised."""
    return getattr(config, "quantization_config", None) is not None


def _refuse_packed(config: PreTrainedConfig, files: ModelFiles) -> None:
    if not is_packed(config) or files.overrides:
        return
    packed = config.quantization_config
    method = packed.get("quant_method", "?") if isinstance(packed, dict) else getattr(packed, "quant_method", "?")
    raise UnsupportedError(
        f"packed checkpoints (quant_method {method!r}) are not read in this version",
        str(files.home),
        "use an unpacked checkpoint or a GGUF of the model",
    )


def build_model(config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """The stock model on meta.

    Raises:
        UnsupportedError: transformers has no causal language model for this config, or lacks a package for it.
    """
    refuse_without_text(config)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    except ImportError as error:
        needs = " ".join(str(error).split(".")[0].split())
        raise UnsupportedError(needs, config.model_type, "install what it names, or use a text model") from error
    except _CONFIG_FAULTS as error:
        kind = getattr(config, "model_type", type(config).__name__)
        message = f"transformers builds no causal language model from its config: {type(error).__name__}: {error}"
        raise UnsupportedError(message, kind, "check model_type and the sizes in config.json") from error
    set_routers(model)
    leave_out_other_parts(model, config)
    return model


def choose_dtype(
    asked: str | torch.dtype | None,
    config: PreTrainedConfig,
    hardware: Hardware,
    device: str,
    sources: Sequence[WeightSource] = (),
) -> torch.dtype:
    """What the model computes in: as asked, else the checkpoint's dtype; float32 for float16 on a CPU, slow as it is.

    On the CPU a quantised GGUF means float32: its matrices stay packed, and activations go to their kernels unrounded.
    A GGUF of plain floats has no dtype of its own: bfloat16 on a GPU or a processor with bfloat16 instructions, else
    float32.
    """
    if isinstance(asked, torch.dtype):
        return asked
    if asked is not None and asked != "auto":
        if asked not in DTYPES:
            raise UnsupportedError(
                f"dtype {asked!r} is not one of {', '.join(DTYPES)}", "dtype", "leave it out for auto"
            )
        return DTYPES[asked]
    stored = getattr(config, "dtype", None)
    on_cpu = torch.device(device).type == "cpu"
    if on_cpu and any(isinstance(source, GgufSource) and source.is_quantised for source in sources):
        return torch.float32
    if isinstance(stored, torch.dtype):
        return torch.float32 if on_cpu and stored is torch.float16 else stored
    return torch.bfloat16 if not on_cpu or {"avx512_bf16", "amx_bf16"} & hardware.cpu.isa else torch.float32


def notes_of(files: ModelFiles, sources: Sequence[WeightSource]) -> list[str]:
    """What a plan should say about the files themselves."""
    described = [one for one in sources if isinstance(one, GgufSource)] if files.home is None else []
    return [*files.notes, *(note for source in described for note in router_notes(source))]


def build_tokenizer(files: ModelFiles, sources: list[WeightSource]) -> PreTrainedTokenizerBase:
    """The tokenizer beside the config, or that of a GGUF's metadata.

    Raises:
        WeightError: there is none.
        UnsupportedError: a GGUF's pre-tokenizer is not known.
    """
    source = next((one for one in sources if isinstance(one, GgufSource)), None)
    if files.home is None and source is not None:
        return tokenizer_from_gguf(source)
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(files.home)
    except (ValueError, OSError, KeyError) as error:
        raise WeightError(
            f"no tokenizer: {error}", str(files.home), "copy tokenizer.json beside config.json"
        ) from error
    return tokenizer


def generation_config_of(model: Any, home: Path | None, sources: list[WeightSource]) -> GenerationConfig | None:
    """The generation config that comes with the weights, for a model that was built from a config alone; else None."""
    current = getattr(model, "generation_config", None)
    if current is None or not getattr(current, "_from_model_config", False):
        return None
    if home is not None and (home / "generation_config.json").is_file():
        return GenerationConfig.from_pretrained(home)
    source = next((one for one in sources if isinstance(one, GgufSource)), None)
    return generation_config_from_gguf(source, model.config) if home is None and source is not None else None
