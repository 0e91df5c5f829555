"""Models that take more than text: which of them can be used for text, and what is said about the rest."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig

from ktitan.errors import UnsupportedError

__all__ = ["leave_out_other_parts", "other_parts", "refuse_without_text", "text_only_notes"]

# First words of the names under which checkpoints keep what is not text.
_OTHER_NAMES = r"^(model\.)?(vision|visual|image|video|audio|speech|multi_?modal|mm_|embed_(vision|audio)|patch_)"


def other_parts(config: PreTrainedConfig) -> list[str]:
    """The sub-configs that are not about text: `vision_config`, `audio_config` and the like."""
    text = config.get_text_config(decoder=True)
    found = {name: getattr(config, name, None) for name in getattr(config, "sub_configs", {})}
    return [name for name, part in found.items() if isinstance(part, PreTrainedConfig) and part is not text]


def refuse_without_text(config: PreTrainedConfig) -> None:
    """Refuse what transformers has no causal language model for, in one sentence instead of its list of all models.

    Raises:
        UnsupportedError: there is none, or it is the decoder of an encoder-decoder.
    """
    kind = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedError("is an encoder-decoder, which is not run", kind, "use a decoder-only language model")
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return
    parts = other_parts(config)
    if parts:
        raise UnsupportedError(
            f"is a multimodal model ({', '.join(parts)}) for which transformers has no text-only class",
            kind,
            "use a text model of the same family, or a GGUF of its language model",
        )
    raise UnsupportedError("transformers has no causal language model of this type", kind, "use a language model")


def leave_out_other_parts(model: Any, config: PreTrainedConfig) -> None:
    """Let a text class that was made of a multimodal config pass over the tensors of the other parts."""
    if other_parts(config) and type(model.config) is not type(config):
        ignored = list(model._keys_to_ignore_on_load_unexpected or [])
        model._keys_to_ignore_on_load_unexpected = [*ignored, _OTHER_NAMES]


def text_only_notes(model: nn.Module, config: PreTrainedConfig) -> list[str]:
    """What the plan says about a multimodal model."""
    parts = other_parts(config)
    if not parts:
        return []
    whole = type(model.config) is type(config)
    rest = "loaded and stay idle" if whole else f"left out ({type(model).__name__} is its text-only class)"
    return [f"{config.model_type} is multimodal and is used for text only: parts of {', '.join(parts)} are {rest}"]
