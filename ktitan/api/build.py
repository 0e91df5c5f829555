"""The stock model on meta, its config, tokenizer and generation config, from files."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ktitan.api.config_file import load_config
from ktitan.api.locate import ModelFiles
from ktitan.api.text_only import leave_out_other_parts, refuse_without_text
from ktitan.api.tokenizer_files import load_tokenizer
from ktitan.errors import Fault, FormatError, UnsupportedError, WeightError
from ktitan.hardware import Hardware
from ktitan.weights.files import is_file
from ktitan.weights.foreign import refused
from ktitan.weights.gguf_config import config_from_gguf, generation_config_from_gguf
from ktitan.weights.gguf_router import router_notes, set_routers
from ktitan.weights.gguf_source import GgufSource
from ktitan.weights.gguf_tokenizer import tokenizer_from_gguf
from ktitan.weights.json_files import read_json
from ktitan.weights.native_source import NativeSource
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

GENERATION_NAME = "generation_config.json"
GENERATION_REMEDY = "correct the value, or delete the file: the model's config is used then"
TOKENIZER_REMEDY = "give the model's HuggingFace folder, and this file as gguf_path"

# Far above any model.
MOST_COLUMNS = 1 << 19

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def read_config(files: ModelFiles, sources: list[WeightSource]) -> PreTrainedConfig:
    """The config beside the weights, or that of a GGUF's metadata.

    Raises:
        UnsupportedError: an architecture that transformers or the GGUF reader does not know, or a packed checkpoint.
        WeightError: there is no config.
        FormatError, IoError: it is broken, or cannot be read.
    """
    if files.home is None:
        source = next((one for one in sources if isinstance(one, GgufSource)), None)
        if source is None:
            raise WeightError(
                "no config.json beside the weights", str(files.weights[-1]), "give the folder that holds both"
            )
        return config_from_gguf(source)
    config = load_config(files.home)
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
    where = getattr(config, "name_or_path", "") or type(config).__name__
    message = "transformers builds no causal language model from its config"
    with (
        refused(UnsupportedError, message, where, "check the value that is named in config.json"),
        torch.device("meta"),
    ):
        try:
            model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
        except ImportError as error:
            needs = " ".join(str(error).split(".")[0].split())
            raise UnsupportedError(needs, config.model_type, "install what it names, or use a text model") from error
    _check_sizes(model, where)
    set_routers(model)
    leave_out_other_parts(model, config)
    return model


def _check_sizes(model: PreTrainedModel, where: str) -> None:
    """Refuse what no model has, before operators try its modules on random numbers of their size."""
    faults = [
        Fault(
            f"{name} would be {list(parameter.shape)}; rows have 1 to {MOST_COLUMNS} numbers",
            where,
            "check the sizes in config.json",
        )
        for name, parameter in model.named_parameters()
        if parameter.numel() == 0 or (parameter.dim() and parameter.shape[-1] > MOST_COLUMNS)
    ]
    if faults:
        raise UnsupportedError.from_faults(faults, f"{len(faults)} tensors have sizes that no model has")


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
        if not isinstance(asked, str) or asked not in DTYPES:
            raise UnsupportedError(
                f"dtype {asked!r} is not one of {', '.join(DTYPES)}", "dtype", "leave it out for auto"
            )
        return DTYPES[asked]
    stored = getattr(config, "dtype", None)
    on_cpu = torch.device(device).type == "cpu"
    if on_cpu and any(isinstance(source, GgufSource | NativeSource) and source.is_quantised for source in sources):
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
        UnsupportedError: a GGUF's pre-tokenizer is not known, or the tokenizer exists only as code.
        FormatError, IoError: its files are broken, or cannot be read.
    """
    if files.home is not None:
        return load_tokenizer(files.home)
    source = next((one for one in sources if isinstance(one, GgufSource)), None)
    if source is None:
        raise WeightError("no tokenizer beside the weights", str(files.weights[-1]), "give the folder that holds both")
    with refused(FormatError, "the tokenizer in its metadata cannot be used", source.path, TOKENIZER_REMEDY):
        tokenizer = tokenizer_from_gguf(source)
    return tokenizer


def generation_config_of(model: Any, home: Path | None, sources: list[WeightSource]) -> GenerationConfig | None:
    """The generation config that comes with the weights, for a model that was built from a config alone; else None."""
    current = getattr(model, "generation_config", None)
    if current is None or not getattr(current, "_from_model_config", False):
        return None
    if home is not None and is_file(home / GENERATION_NAME):
        return _read_generation_config(home)
    source = next((one for one in sources if isinstance(one, GgufSource)), None)
    return generation_config_from_gguf(source, model.config) if home is None and source is not None else None


def _read_generation_config(home: Path) -> GenerationConfig:
    """The file in `home`, whose ids are whole numbers.

    Raises:
        FormatError, IoError: it is broken, or cannot be read.
    """
    path = home / GENERATION_NAME
    stated = read_json(path)
    ids = {name: value for name, value in stated.items() if name.endswith("_token_id") and value is not None}
    faults = [
        Fault(f"{name} is {str(value)[:60]!r}, not a token id", str(path), GENERATION_REMEDY)
        for name, value in ids.items()
        if not all(type(one) is int for one in (value if isinstance(value, list) else [value]))
    ]
    if faults:
        raise FormatError.from_faults(faults, f"{len(faults)} values of {path} cannot be")
    with refused(FormatError, "it cannot be used", path, GENERATION_REMEDY):
        config = GenerationConfig.from_pretrained(home, local_files_only=True)
    return config
