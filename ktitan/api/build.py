"""The stock model on meta, its config, tokenizer and generation config, from files."""

from __future__ import annotations

import json
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
from ktitan.errors import FormatError, KtitanError, UnsupportedError, WeightError, translated
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

# Far above any model.
MOST_LAYERS = 4096
MOST_COLUMNS = 1 << 19

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
    file = str(files.home / "config.json")

    def refusal(words: str) -> KtitanError:
        return UnsupportedError(f"its config cannot be used: {words}", file, "update transformers, or check the file")

    _check_layers(file)
    with translated(refusal, StrictDataclassError):
        config = AutoConfig.from_pretrained(files.home)
    _refuse_packed(config, files)
    return config


def _check_layers(file: str) -> None:
    """Refuse a number of layers that no model has, before lists and modules of that many are made."""
    try:
        stated = json.loads(Path(file).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return  # transformers reads it next and says what is wrong
    parts = [stated] if isinstance(stated, dict) else []
    for part in parts:
        for key, value in part.items():
            if isinstance(value, dict):
                parts.append(value)  # a part's own config, e.g. text_config
            elif "layer" in key and isinstance(value, int) and value > MOST_LAYERS:
                raise FormatError(f"{key} is {value}, at most {MOST_LAYERS} are built", file, "copy the file again")


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
        UnsupportedError: transformers has no causal language model for this config.
    """
    kind = str(getattr(config, "model_type", type(config).__name__))

    def refusal(words: str) -> KtitanError:
        message = f"transformers builds no causal language model from its config: {words}"
        return UnsupportedError(message, kind, "check model_type and the sizes in config.json")

    with translated(refusal, StrictDataclassError), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    _check_sizes(model, kind)
    set_routers(model)
    return model


def _check_sizes(model: PreTrainedModel, kind: str) -> None:
    """Refuse what no model has, before operators try its modules on random numbers of their size."""
    for name, parameter in model.named_parameters():
        if parameter.numel() == 0 or (parameter.dim() and parameter.shape[-1] > MOST_COLUMNS):
            message = f"{name} would be {list(parameter.shape)}; rows have 1 to {MOST_COLUMNS} numbers"
            raise UnsupportedError(message, kind, "check the sizes in config.json")


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
        WeightError: there is none, or it cannot be used.
        UnsupportedError: a GGUF's pre-tokenizer is not known.
    """
    source = next((one for one in sources if isinstance(one, GgufSource)), None)
    if files.home is None and source is not None:
        return tokenizer_from_gguf(source)

    def refusal(words: str) -> KtitanError:
        return WeightError(f"no tokenizer: {words}", str(files.home), "copy tokenizer.json beside config.json again")

    with translated(refusal, StrictDataclassError):
        tokenizer: Any = AutoTokenizer.from_pretrained(files.home)
        # Much of what the files say is looked at when it is used: lengths, and the token for what is unknown.
        tokenizer.decode(tokenizer("a \U0010fffd")["input_ids"])
    return tokenizer


def generation_config_of(model: Any, home: Path | None, sources: list[WeightSource]) -> GenerationConfig | None:
    """The generation config that comes with the weights, for a model that was built from a config alone; else None.

    Raises:
        FormatError: generation_config.json is none.
    """
    current = getattr(model, "generation_config", None)
    if current is None or not getattr(current, "_from_model_config", False):
        return None
    if home is not None and (home / "generation_config.json").is_file():
        file = str(home / "generation_config.json")
        remedy = "copy it again, or delete it to use transformers' defaults"
        with translated(lambda words: FormatError(f"cannot be used: {words}", file, remedy)):
            return GenerationConfig.from_pretrained(home)
    source = next((one for one in sources if isinstance(one, GgufSource)), None)
    return generation_config_from_gguf(source, model.config) if home is None and source is not None else None
