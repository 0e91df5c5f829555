"""Rotary position parameters in transformers' terms, from GGUF metadata and the `rope_freqs.weight` tensor."""

from __future__ import annotations

import math
from typing import Any

import torch

from ktitan.errors import FormatError, UnsupportedError
from ktitan.weights.gguf_metadata import GgufKeys
from ktitan.weights.gguf_source import GgufSource

__all__ = ["ROPE_FACTORS", "rope_factors", "rope_parameters"]

ROPE_FACTORS = "rope_freqs.weight"
DEFAULT_THETA = 10000.0
# llama.cpp's converter stores deepseek's mscale_all_dim times this.
LOG_MULTIPLIER_SCALE = 0.1
LLAMA3_BANDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3_CONTEXT = 8192
# Rotary frequencies of a head; the tensor is read before anything else vouches for its size.
MOST_FACTORS = 1 << 16

_CHECKPOINT_REMEDY = "load the safetensors that the file was made from"


def rope_parameters(keys: GgufKeys, dimensions: int, two_scales: bool = False) -> dict[str, Any]:
    """`config.rope_parameters` of a model whose rotary part has `dimensions` numbers a head.

    Args:
        keys: the metadata.
        dimensions: rotary numbers a head; `rope_freqs.weight` has half as many factors.
        two_scales: the model class scales the softmax by `mscale_all_dim` besides cos and sin (DeepSeek's yarn).

    Raises:
        FormatError: values are missing or malformed.
        UnsupportedError: a kind of scaling that these model classes do not have.
    """
    theta = keys.number("rope.freq_base", DEFAULT_THETA)
    if theta <= 0:
        raise FormatError(
            f"rope.freq_base is {theta}, not above 0", keys.source.path, "convert the model again with llama.cpp"
        )
    factors = rope_factors(keys.source)
    kind, factor = _scaling(keys)
    if kind not in _SCALINGS:
        raise UnsupportedError(
            f"rope scaling {kind!r} is not supported for {keys.source.architecture}",
            keys.source.path,
            f"known: {', '.join(_SCALINGS)}",
        )
    if factors is not None:
        if kind != "none":
            raise UnsupportedError(
                f"rope scaling {kind!r} together with {ROPE_FACTORS}", keys.source.path, _CHECKPOINT_REMEDY
            )
        return {"rope_theta": theta, **_from_factors(keys, factors, theta, dimensions)}
    return {"rope_theta": theta, **_SCALINGS[kind](keys, factor, two_scales)}


def rope_factors(source: GgufSource) -> list[float] | None:
    """What each rotary frequency is divided by, or None when the file has no such tensor or all are 1."""
    info = source.tensors.get(ROPE_FACTORS)
    if info is None:
        return None
    where = f"{info.file}: tensor {ROPE_FACTORS!r}"
    if len(info.shape) != 1 or info.shape[0] > MOST_FACTORS:
        raise FormatError(f"is {list(info.shape)}, not one factor a frequency", where, "convert the file again")
    values = torch.empty(info.shape, dtype=torch.float32)
    source.read_into(ROPE_FACTORS, values)
    if not bool((torch.isfinite(values) & (values > 0)).all()):
        raise FormatError(
            "a factor is zero, negative or not finite",
            where,
            "download or convert the file again",
        )
    return None if bool((values == 1).all()) else [float(value) for value in values]


def _scaling(keys: GgufKeys) -> tuple[str, float]:
    """Kind and factor; a factor without a kind is linear, as in llama.cpp."""
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0)) or 1.0
    kind = keys.text("rope.scaling.type", "none" if factor == 1.0 else "linear")
    return ("none" if kind == "linear" and factor == 1.0 else kind), factor


def _default(keys: GgufKeys, factor: float, two_scales: bool) -> dict[str, Any]:
    return {"rope_type": "default"}


def _linear(keys: GgufKeys, factor: float, two_scales: bool) -> dict[str, Any]:
    return {"rope_type": "linear", "factor": factor}


def _yarn(keys: GgufKeys, factor: float, two_scales: bool) -> dict[str, Any]:
    """Yarn has two corrections: of cos and sin (`attention_factor`), and of the softmax (`mscale_all_dim`)."""
    if keys.number("rope.scaling.yarn_ext_factor", 1.0) != 1.0:
        raise UnsupportedError("yarn with another extrapolation factor than 1", keys.source.path, _CHECKPOINT_REMEDY)
    parameters: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": keys.integer("rope.scaling.original_context_length"),
    }
    for name in ("beta_fast", "beta_slow"):
        if keys.has(f"rope.scaling.yarn_{name}"):
            parameters[name] = keys.number(f"rope.scaling.yarn_{name}")
    multiplier = round(keys.number("rope.scaling.yarn_log_multiplier", 0.0) / LOG_MULTIPLIER_SCALE, 6)
    if multiplier and not two_scales:
        raise UnsupportedError(
            "yarn_log_multiplier, which this model class does not know", keys.source.path, _CHECKPOINT_REMEDY
        )
    if multiplier:
        # The file keeps only mscale_all_dim; llama.cpp too takes mscale to be the same, so cos and sin stay unscaled.
        parameters |= {"mscale": multiplier, "mscale_all_dim": multiplier}
    attention = _attention_factor(keys, 1.0 if multiplier else 1.0 + 0.1 * math.log(max(1.0, factor)))
    return parameters if attention is None else {**parameters, "attention_factor": attention}


def _attention_factor(keys: GgufKeys, usual: float) -> float | None:
    """The explicit factor of cos and sin, or None for the usual one.

    `yarn_attn_factor` is HuggingFace's `attention_factor` as the converter copied it; `attn_factor` multiplies.
    """
    absolute, relative = "rope.scaling.yarn_attn_factor", "rope.scaling.attn_factor"
    if not keys.has(absolute) and not keys.has(relative):
        return None
    return keys.number(absolute, usual) * keys.number(relative, 1.0)


_SCALINGS = {"none": _default, "linear": _linear, "yarn": _yarn}


def _from_factors(keys: GgufKeys, factors: list[float], theta: float, dimensions: int) -> dict[str, Any]:
    """Llama 3's scaling when it gives these factors, else the factors themselves in the form of longrope."""
    if len(factors) != dimensions // 2:
        raise FormatError(
            f"{ROPE_FACTORS} has {len(factors)} factors, the heads have {dimensions // 2} frequencies",
            keys.source.path,
            "convert the model again with llama.cpp",
        )
    context = keys.integer("context_length")
    for original in (keys.integer("rope.scaling.original_context_length", LLAMA3_CONTEXT), context):
        guess = {"factor": max(factors), **LLAMA3_BANDS, "original_max_position_embeddings": original}
        if _close(_llama3_factors(guess, theta, dimensions), factors):
            return {"rope_type": "llama3", **guess}
    # With one list for short and long texts longrope divides the frequencies by exactly these factors.
    return {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": factors,
        "factor": 1.0,
        "attention_factor": 1.0,
        "original_max_position_embeddings": context,
    }


def _llama3_factors(guess: dict[str, Any], theta: float, dimensions: int) -> list[float]:
    """What Llama 3's rule divides each frequency by (transformers, modeling_rope_utils)."""
    context, low, high = (
        guess[name] for name in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    )
    factors = []
    for index in range(0, dimensions, 2):
        turns = context / (2 * math.pi * theta ** (index / dimensions))
        smooth = min(1.0, max(0.0, (turns - low) / (high - low)))
        factors.append(1.0 / ((1.0 - smooth) / guess["factor"] + smooth))
    return factors


def _close(ours: list[float], stored: list[float]) -> bool:
    return all(abs(a - b) <= 1e-4 * b for a, b in zip(ours, stored, strict=True))
