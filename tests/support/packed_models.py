"""Tiny models whose matrices are random blocks of one ggml type, as GGUF files beside their dequantised stock twins."""

import gguf
import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV2Config,
    DeepseekV3Config,
    Gemma3TextConfig,
    LlamaConfig,
    MixtralConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from support.gguf_blocks import dequantized, ggml_type, random_rows
from support.gguf_files import ALPHABET, add_value, describe, gguf_tensors

_COMMON = {
    "vocab_size": 64,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_TOKENIZER = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": [*ALPHABET[:-3], "a", "b", "ab"],
    "tokenizer.ggml.merges": ["a b"],
}
_LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 48,
    "qk_rope_head_dim": 16,
    "v_head_dim": 64,
    "moe_intermediate_size": 256,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
}

# All matrices have rows of a multiple of 256 numbers, but for routers.
CONFIGS = {
    "llama": lambda: LlamaConfig(**_COMMON, num_key_value_heads=2),
    "llama_tied": lambda: LlamaConfig(**_COMMON, num_key_value_heads=2, tie_word_embeddings=True),
    "mixtral": lambda: MixtralConfig(**_COMMON, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2),
    "qwen2": lambda: Qwen2Config(**_COMMON, num_key_value_heads=2),
    "qwen2_moe": lambda: Qwen2MoeConfig(
        **_COMMON,
        num_key_value_heads=2,
        moe_intermediate_size=256,
        shared_expert_intermediate_size=256,
        num_experts=6,
        num_experts_per_tok=3,
    ),
    "qwen3": lambda: Qwen3Config(**_COMMON, num_key_value_heads=2, head_dim=64),
    "qwen3_moe": lambda: Qwen3MoeConfig(
        **_COMMON,
        num_key_value_heads=2,
        head_dim=64,
        moe_intermediate_size=256,
        num_experts=6,
        num_experts_per_tok=3,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        norm_topk_prob=True,
    ),
    "gemma3_text": lambda: Gemma3TextConfig(
        **{**_COMMON, "num_hidden_layers": 6},  # files hold no pattern: every sixth layer sees all
        num_key_value_heads=2,
        head_dim=64,
        query_pre_attn_scalar=64,
        sliding_window=9,
        layer_types=["sliding_attention"] * 5 + ["full_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
    "deepseek_v2": lambda: DeepseekV2Config(**_COMMON, **_LATENT, q_lora_rank=None, topk_method="greedy"),
    "deepseek_v3": lambda: DeepseekV3Config(**_COMMON, **_LATENT, q_lora_rank=256, n_group=2, topk_group=1),
}


def is_packed(name, tensor, block):
    """Whether a file would quantise this tensor."""
    router = name.endswith((".gate.weight", "shared_expert_gate.weight"))
    return tensor.dim() >= 2 and tensor.shape[-1] % block == 0 and not router


def write_packed(path, family, kind, seed, more=None, single_experts=False):
    """Write a GGUF model whose matrices are blocks of `kind`; returns the stock model on the dequantised numbers.

    Args:
        path: the file.
        family: a key of CONFIGS.
        kind: a packed ggml type, or a function of the tensor's stock name that gives one (None: float32).
        seed: of the numbers.
        more: metadata to add or, with the value None, to leave out.
        single_experts: one tensor an expert, as before April 2024.
    """
    rng, config = np.random.default_rng(seed), CONFIGS[family]()
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    kinds, stored = {}, {}
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    for name, tensor in model.state_dict().items():
        if name in tied:
            continue
        chosen = kind(name) if callable(kind) else kind
        if chosen and is_packed(name, tensor, gguf.GGML_QUANT_SIZES[ggml_type(chosen)][0]):
            rows = random_rows(chosen, tuple(tensor.shape), rng)
            tensor.copy_(torch.from_numpy(dequantized(chosen, rows)))
            stored[name], kinds[name] = torch.from_numpy(rows), chosen
        else:
            tensor.copy_(_random(config, name, tensor, rng))
    _write(path, model, stored, kinds, more or {}, single_experts)
    return model


def _random(config, name, tensor, rng):
    mean = 0.0 if config.model_type.startswith("gemma") else 1.0
    spread = torch.from_numpy(rng.standard_normal(tuple(tensor.shape)).astype(np.float32)) * 0.1
    # Norms are multiples of 1/1024, so that adding and taking away 1 is exact.
    return ((mean + spread) * 1024).round() / 1024 if "norm" in name else spread


class _Stored:
    """What `gguf_tensors` reads of a model, with stored rows in place of numbers."""

    def __init__(self, model, stored):
        self.config = model.config
        self._state = {**model.state_dict(), **stored}

    def state_dict(self):
        return self._state


def _write(path, model, stored, kinds, more, single_experts):
    architecture, metadata = describe(model.config, split=False)
    metadata = {key: value for key, value in (metadata | more).items() if value is not None}
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {**_TOKENIZER, **metadata}.items():
        add_value(writer, key if key.startswith(("tokenizer.", "general.")) else f"{architecture}.{key}", value)
    # Writing splits tensors and reorders rows; a row's own bytes still tell its type.
    types = {row.tobytes(): kinds[name] for name, rows in stored.items() for row in rows.flatten(0, -2).numpy()}
    for name, tensor in gguf_tensors(_Stored(model, stored), False, single_experts).items():
        array = np.ascontiguousarray(tensor.detach().numpy())
        if array.dtype == np.uint8:
            first = array.reshape(-1, array.shape[-1])[0].tobytes()
            writer.add_tensor(name, array, raw_dtype=ggml_type(types[first]))
        else:
            writer.add_tensor(name, array.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
