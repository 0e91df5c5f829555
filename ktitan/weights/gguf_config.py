"""A transformers config from GGUF metadata alone: a row of `FAMILIES` for each architecture.

Key names: https://github.com/ggml-org/llama.cpp, gguf-py/gguf/constants.py and the converters beside it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import DeepseekV2Config, DeepseekV3Config, GenerationConfig, PretrainedConfig

from ktitan.errors import FormatError, UnsupportedError
from ktitan.weights.foreign import refused
from ktitan.weights.gguf_grouped import USE_FOLDER, gemma3, llama, qwen2, qwen2_moe, qwen3, qwen3_moe
from ktitan.weights.gguf_metadata import GgufKeys, token_id
from ktitan.weights.gguf_rope import rope_parameters
from ktitan.weights.gguf_router import SOFTMAX_SCORES
from ktitan.weights.gguf_source import GgufSource

__all__ = ["FAMILIES", "Family", "config_from_gguf", "generation_config_from_gguf"]

logger = logging.getLogger("ktitan.weights.gguf")

SOFTMAX, SIGMOID = 1, 2
MAX_EXPERTS = 65536
CONTROL = 3
# Marks that end a turn; one counts when it is a control token that the file's own chat template writes.
END_OF_TURN = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|eom_id|>", "<EOT>")
END_OF_QWEN = ("<|im_end|>", "<|endoftext|>")

# config attribute -> key, for whole numbers of at least 1 that every file must have
SIZES = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
}


@dataclass(frozen=True)
class Family:
    """How one GGUF architecture becomes a config.

    Attributes:
        values: from the metadata to the config class and the values that only this family has.
        sizes: config attribute -> key of a required whole number, besides `SIZES`.
        refused: key -> why the model classes cannot follow it, when the file has it with a value other than 0.
        ends: control tokens that end an answer in this family whatever the chat template says.
    """

    values: Callable[[GgufKeys], tuple[type[PretrainedConfig], dict[str, Any]]]
    sizes: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    ends: tuple[str, ...] = ()


def config_from_gguf(source: GgufSource) -> PretrainedConfig:
    """The config of the stock class that computes what the file describes; its dtype is left to the caller.

    Architecture "llama" gives Llama, or Mixtral when there are experts; "gemma3" gives its text model. "deepseek2"
    covers DeepSeek V2 and V3; what sets their classes apart is the router: sigmoid scores (`expert_gating_func` 2)
    with a selection bias are V3's, softmax is V2's. A file without that key means softmax, as in llama.cpp; where it
    has biases or normalised weights all the same, `scoring_func` of V3's config says so (`ktitan.weights.gguf_router`).

    Raises:
        UnsupportedError: the architecture is unknown, or the file asks for what the class cannot compute.
        FormatError: metadata is missing or contradicts itself or the tensors.
    """
    family = FAMILIES.get(source.architecture)
    if family is None:
        raise UnsupportedError(
            f"GGUF architecture {source.architecture!r} has no config here; known: {', '.join(sorted(FAMILIES))}",
            source.path,
            USE_FOLDER,
        )
    keys = GgufKeys(source)
    for key, why in family.refused.items():
        if keys.has(key) and keys.number(key) != 0:
            raise UnsupportedError(f"{source.architecture}.{key}: {why}", source.path, USE_FOLDER)
    common = _common(keys, {**SIZES, **family.sizes})
    cls, special = family.values(keys)
    message = f"the metadata makes no {cls.__name__}"
    with refused(FormatError, message, source.path, USE_FOLDER):
        config = cls(**common, **special)
    config.architectures = [cls.__name__.replace("Config", "ForCausalLM")]
    config.name_or_path = source.path
    return config


def generation_config_from_gguf(source: GgufSource, config: PretrainedConfig) -> GenerationConfig:
    """Start, end and padding ids; the end ids are those of text, turn and message, each once."""
    vocabulary = config.vocab_size
    named = [token_id(source.metadata, name, vocabulary) for name in ("eos", "eot", "eom")]
    ends = list(dict.fromkeys(one for one in [*named, *_marked_ends(source)] if one is not None))
    return GenerationConfig(
        bos_token_id=config.bos_token_id,
        pad_token_id=config.pad_token_id,
        eos_token_id=ends if len(ends) > 1 else (ends[0] if ends else None),
    )


def _marked_ends(source: GgufSource) -> list[int]:
    """Control tokens that end an answer: the family's, and those of the chat template (old files name no others)."""
    template = source.metadata.get("tokenizer.chat_template")
    written = template if isinstance(template, str) else ""
    family = FAMILIES.get(source.architecture)
    marks = {*(mark for mark in END_OF_TURN if mark in written), *(family.ends if family else ())}
    keys = GgufKeys(source)
    tokens = keys.items("tokenizer.ggml.tokens", str, required=False)
    types = keys.items("tokenizer.ggml.token_type", int, required=False)
    return [
        index
        for index, (token, kind) in enumerate(zip(tokens, types, strict=False))
        if kind == CONTROL and token in marks
    ]


def _common(keys: GgufKeys, sizes: Mapping[str, str]) -> dict[str, Any]:
    """What every decoder has."""
    source = keys.source
    values: dict[str, Any] = {name: keys.integer(key) for name, key in sizes.items()}
    extra = keys.integer("nextn_predict_layers", 0, minimum=0)
    values["num_hidden_layers"] -= extra
    _check_blocks(source, values["num_hidden_layers"], extra)
    _check_experts(keys)
    values["rms_norm_eps"] = keys.number("attention.layer_norm_rms_epsilon")
    vocabulary = len(keys.items("tokenizer.ggml.tokens", str, required=False)) or keys.integer("vocab_size")
    _check_vocabulary(source, vocabulary)
    values["vocab_size"] = vocabulary
    values["tie_word_embeddings"] = "output.weight" not in source.tensors
    for ours, theirs in {"bos": "bos", "eos": "eos", "pad": "padding"}.items():
        values[f"{ours}_token_id"] = token_id(source.metadata, theirs, vocabulary)
    return values


def _check_blocks(source: GgufSource, stated: int, extra: int) -> None:
    """Refuse a block count that the tensors do not bear out, before a model of that many layers is built.

    `extra` blocks predict further tokens and may be left out of a file.
    """
    numbers = (re.match(r"blk\.(\d+)\.", name) for name in source.tensors)
    found = len({number[1] for number in numbers if number})
    if not 1 <= stated <= found or extra > found:
        raise FormatError(
            f"the metadata says {stated} blocks, there are tensors for {found}", source.path, "convert the model again"
        )


def _check_experts(keys: GgufKeys) -> None:
    """Refuse counts of experts that no model has, before each of them is looked for."""
    count = keys.integer("expert_count", 0, minimum=0)
    used = keys.integer("expert_used_count", 0, minimum=0)
    if count > MAX_EXPERTS or (count and used > count):
        raise FormatError(
            f"the metadata says {count} experts, {used} of them for a token",
            keys.source.path,
            "convert the model again",
        )


def _check_vocabulary(source: GgufSource, tokens: int) -> None:
    """Refuse a token list of another length than the embedding: ids would be taken for those of other tokens."""
    embedding = source.tensors.get("token_embd.weight")
    rows = tokens if embedding is None else next(iter(embedding.shape), 0)
    if rows != tokens:
        raise FormatError(
            f"the metadata lists {tokens} tokens, token_embd.weight has {rows} rows",
            source.path,
            "convert the model again with llama.cpp",
        )


def _deepseek(keys: GgufKeys) -> tuple[type[PretrainedConfig], dict[str, Any]]:
    rotary = keys.integer("rope.dimension_count")
    # Files that keep kv_b in two tensors describe the latent as one key head, and the true head sizes in *_mla.
    key = keys.integer("attention.key_length_mla", keys.integer("attention.key_length"), minimum=rotary + 1)
    values = {
        "num_key_value_heads": keys.integer("attention.head_count"),
        "q_lora_rank": keys.integer("attention.q_lora_rank", 0, minimum=0) or None,
        "qk_rope_head_dim": rotary,
        "qk_nope_head_dim": key - rotary,
        "v_head_dim": keys.integer("attention.value_length_mla", keys.integer("attention.value_length")),
        "first_k_dense_replace": keys.integer("leading_dense_block_count", 0, minimum=0),
        "norm_topk_prob": keys.flag("expert_weights_norm", False),
        # llama.cpp writes and reads 0 for "no scale".
        "routed_scaling_factor": keys.number("expert_weights_scale", 1.0) or 1.0,
        "attention_bias": "blk.0.attn_output.bias" in keys.source.tensors,
        "rope_parameters": rope_parameters(keys, rotary, two_scales=True),
        "n_group": keys.integer("expert_group_count", 1),
        "topk_group": keys.integer("expert_group_used_count", 1),
    }
    gating = keys.integer("expert_gating_func", SOFTMAX, minimum=0) or SOFTMAX
    if gating == SIGMOID:
        return DeepseekV3Config, _sigmoid_router(keys, values)
    if gating == SOFTMAX:
        return _softmax_router(keys, values)
    raise UnsupportedError(f"expert_gating_func {gating} is neither softmax nor sigmoid", keys.source.path, USE_FOLDER)


def _sigmoid_router(keys: GgufKeys, values: dict[str, Any]) -> dict[str, Any]:
    experts, groups = keys.integer("expert_count"), values["n_group"]
    if experts % groups or experts // groups < 2:
        raise FormatError(
            f"{experts} experts cannot be in {groups} groups of two and more",
            keys.source.path,
            "convert the model again",
        )
    if not keys.has("expert_group_count"):
        logger.warning(
            "%s does not say how its experts are grouped (an early conversion); all are taken as one group, as "
            "llama.cpp does. DeepSeek V3 and R1 have 8 groups: %s",
            keys.source.path,
            USE_FOLDER,
        )
    return {**values, "rope_interleave": True}


def _softmax_router(keys: GgufKeys, values: dict[str, Any]) -> tuple[type[PretrainedConfig], dict[str, Any]]:
    """V2's class, or V3's with softmax scores where the file has what V2 lacks."""
    biased = any(name.endswith("exp_probs_b.bias") for name in keys.source.tensors)
    if biased or values["norm_topk_prob"]:
        return DeepseekV3Config, {**_sigmoid_router(keys, values), "scoring_func": SOFTMAX_SCORES}
    grouped = values["n_group"] > 1
    return DeepseekV2Config, {**values, "topk_method": "group_limited_greedy" if grouped else "greedy"}


FAMILIES: dict[str, Family] = {
    "llama": Family(llama),
    "qwen2": Family(qwen2, ends=END_OF_QWEN),
    "qwen2moe": Family(qwen2_moe, ends=END_OF_QWEN),
    "qwen3": Family(qwen3, ends=END_OF_QWEN),
    "qwen3moe": Family(qwen3_moe, ends=END_OF_QWEN),
    "gemma3": Family(
        gemma3,
        ends=("<end_of_turn>",),
        refused={"attn_logit_softcapping": "llama.cpp does not cap the attention scores of Gemma 3"},
    ),
    "deepseek2": Family(
        _deepseek,
        sizes={
            "kv_lora_rank": "attention.kv_lora_rank",
            "n_routed_experts": "expert_count",
            "num_experts_per_tok": "expert_used_count",
            "n_shared_experts": "expert_shared_count",
            "moe_intermediate_size": "expert_feed_forward_length",
        },
        refused={"attention.temperature_scale": "attention is scaled by position, which DeepSeek's classes do not do"},
    ),
}
