"""Config values of the families with grouped-query attention, from GGUF metadata.

What llama.cpp computes counts where its files say nothing (https://github.com/ggml-org/llama.cpp, src/llama-model.cpp
and src/models): normalised expert weights of Qwen 3 MoE, window pattern and attention scale of Gemma 3.
"""

from __future__ import annotations

from typing import Any

from transformers import (
    Gemma3TextConfig,
    LlamaConfig,
    MixtralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from ktitan.errors import FormatError, UnsupportedError
from ktitan.weights.gguf_metadata import GgufKeys
from ktitan.weights.gguf_rope import DEFAULT_THETA, rope_parameters

__all__ = ["USE_FOLDER", "gemma3", "llama", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"]

USE_FOLDER = "give the model's HuggingFace folder for its config, and this file for the weights"
QUERY_BIAS = "blk.0.attn_q.bias"
# Gemma 3: every so many layers one sees the whole text; the size whose queries are scaled by H / heads.
WINDOW_PERIOD = 6
LAYERS_OF_27B = 62

Values = tuple[type[PretrainedConfig], dict[str, Any]]


def llama(keys: GgufKeys) -> Values:
    """Llama, or Mixtral when there are experts."""
    values = _attention(keys)
    if keys.integer("expert_count", 0, minimum=0):
        experts = {
            "num_local_experts": keys.integer("expert_count"),
            "num_experts_per_tok": keys.integer("expert_used_count"),
            "sliding_window": None,
        }
        return MixtralConfig, {**values, **experts}
    biases = {
        "attention_bias": QUERY_BIAS in keys.source.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in keys.source.tensors,
    }
    return LlamaConfig, {**values, **biases}


def qwen2(keys: GgufKeys) -> Values:
    """Qwen 2 and 2.5, whose class always has biases on q, k and v."""
    return Qwen2Config, _qwen2_attention(keys)


def qwen2_moe(keys: GgufKeys) -> Values:
    """Qwen 1.5 and 2 MoE: a shared expert beside the routed ones, whose weights are not normalised."""
    experts = {
        "shared_expert_intermediate_size": keys.integer(
            "expert_shared_feed_forward_length", keys.integer("feed_forward_length")
        ),
        "qkv_bias": QUERY_BIAS in keys.source.tensors,
        "norm_topk_prob": False,
    }
    return Qwen2MoeConfig, {**_qwen2_attention(keys), **_experts(keys), **experts}


def qwen3(keys: GgufKeys) -> Values:
    """Qwen 3: a norm on every head's query and key."""
    return Qwen3Config, {**_attention(keys), "attention_bias": QUERY_BIAS in keys.source.tensors}


def qwen3_moe(keys: GgufKeys) -> Values:
    """Qwen 3 MoE, with normalised weights of the chosen experts."""
    bias = {"attention_bias": QUERY_BIAS in keys.source.tensors}
    return Qwen3MoeConfig, {**_attention(keys), **_experts(keys), **bias, "norm_topk_prob": True}


def gemma3(keys: GgufKeys) -> Values:
    """Gemma 3 (text): most layers see a window and have a rotary base of their own; scaling is for the others."""
    values = _attention(keys)
    window = keys.integer("attention.sliding_window", 0, minimum=0)
    # The usual base would be wrong for every Gemma 3, so a file must state its own.
    whole = {**values["rope_parameters"], "rope_theta": keys.number("rope.freq_base")}
    local = {"rope_type": "default", "rope_theta": keys.number("rope.freq_base_swa", DEFAULT_THETA)}
    return Gemma3TextConfig, {
        **values,
        "rope_parameters": {"full_attention": whole, "sliding_attention": local},
        "sliding_window": window or None,
        "layer_types": [f"{'sliding' if near else 'full'}_attention" for near in _windowed(keys, window)],
        "query_pre_attn_scalar": _query_scale(keys, values["head_dim"]),
        "final_logit_softcapping": keys.number("final_logit_softcapping", 0.0) or None,
        "attn_logit_softcapping": None,
        "attention_bias": QUERY_BIAS in keys.source.tensors,
        "hidden_activation": "gelu_pytorch_tanh",
        "use_bidirectional_attention": False,
    }


def _attention(keys: GgufKeys) -> dict[str, Any]:
    """Heads, their size and their rotation."""
    heads = keys.integer("attention.head_count")
    shared = keys.integer("attention.head_count_kv", heads)
    head = keys.integer("attention.key_length", max(1, keys.integer("embedding_length") // heads))
    rotary = keys.integer("rope.dimension_count", head)
    if keys.integer("attention.value_length", head) != head or rotary != head:
        raise UnsupportedError("keys, values and rotary part of a head differ in size", keys.source.path, USE_FOLDER)
    if heads % shared:
        raise FormatError(f"{heads} heads cannot share {shared} key heads", keys.source.path, "convert the model again")
    return {"num_key_value_heads": shared, "head_dim": head, "rope_parameters": rope_parameters(keys, head)}


def _qwen2_attention(keys: GgufKeys) -> dict[str, Any]:
    """As `_attention`; these configs name a head's size only where it is not H / heads."""
    values = _attention(keys)
    if values["head_dim"] * keys.integer("attention.head_count") == keys.integer("embedding_length"):
        del values["head_dim"]
    return values


def _experts(keys: GgufKeys) -> dict[str, Any]:
    """Count, choice and size of routed experts; early files leave the size to be computed, as llama.cpp does."""
    used = keys.integer("expert_used_count")
    size = keys.integer("expert_feed_forward_length", max(1, keys.integer("feed_forward_length") // used))
    return {
        "num_experts": keys.integer("expert_count"),
        "num_experts_per_tok": used,
        "moe_intermediate_size": size,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _windowed(keys: GgufKeys, window: int) -> list[bool]:
    """Which layers see only a window: by a period, or one entry a layer."""
    layers, pattern = keys.integer("block_count"), "attention.sliding_window_pattern"
    if not window:
        return [False] * layers
    if keys.is_list(pattern):
        stated = keys.items(pattern, bool)
        if len(stated) != layers:
            raise FormatError(f"{pattern} has {len(stated)} entries for {layers} layers", keys.source.path, USE_FOLDER)
        return stated
    period = keys.integer(pattern, WINDOW_PERIOD)
    return [layer % period < period - 1 for layer in range(layers)]


def _query_scale(keys: GgufKeys, head: int) -> int:
    """`query_pre_attn_scalar`, which files do not hold: a head's size, but H / heads in the 27B model."""
    if keys.integer("block_count") != LAYERS_OF_27B:
        return head
    return keys.integer("embedding_length") // keys.integer("attention.head_count")
