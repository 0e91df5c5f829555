"""Tiny random models of each family, saved as stock transformers saves them."""

import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV2Config,
    DeepseekV3Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    OlmoeConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

VOCABULARY = 131

_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
}

CONFIGS = {
    "llama": lambda: LlamaConfig(**_COMMON, num_key_value_heads=2),
    "llama_tied": lambda: LlamaConfig(**_COMMON, num_key_value_heads=2, tie_word_embeddings=True),
    "mixtral": lambda: MixtralConfig(**_COMMON, num_key_value_heads=2, num_local_experts=5, num_experts_per_tok=2),
    "mistral": lambda: MistralConfig(**_COMMON, num_key_value_heads=2, head_dim=16, sliding_window=9),
    "olmoe": lambda: OlmoeConfig(**_COMMON, num_key_value_heads=2, num_experts=6, num_experts_per_tok=2),
    "qwen2": lambda: Qwen2Config(**_COMMON, num_key_value_heads=2),
    "qwen2_moe": lambda: Qwen2MoeConfig(
        **_COMMON,
        num_key_value_heads=2,
        moe_intermediate_size=20,
        shared_expert_intermediate_size=36,
        num_experts=6,
        num_experts_per_tok=3,
    ),
    "qwen3": lambda: Qwen3Config(**_COMMON, num_key_value_heads=2, head_dim=16),
    "gemma3_text": lambda: Gemma3TextConfig(
        **_COMMON,
        num_key_value_heads=2,
        head_dim=16,
        query_pre_attn_scalar=20,
        sliding_window=9,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
    "gpt_oss": lambda: GptOssConfig(
        **_COMMON,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=9,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        num_local_experts=5,
        num_experts_per_tok=2,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 8.0,
            "truncate": False,
            "original_max_position_embeddings": 32,
        },
    ),
    "qwen3_moe": lambda: Qwen3MoeConfig(
        **_COMMON,
        num_key_value_heads=2,
        head_dim=12,
        moe_intermediate_size=20,
        num_experts=6,
        num_experts_per_tok=3,
        decoder_sparse_step=1,
        mlp_only_layers=[0],
        norm_topk_prob=True,
    ),
    "deepseek_v2": lambda: DeepseekV2Config(
        **_COMMON, **_LATENT, q_lora_rank=None, topk_method="group_limited_greedy", n_group=2, topk_group=1
    ),
    "deepseek_v3": lambda: DeepseekV3Config(**_COMMON, **_LATENT, q_lora_rank=20, n_group=2, topk_group=1),
}


def tiny_model(family, seed=0):
    """A stock model in float32 with weights large enough that every part matters."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIGS[family](), dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            else:
                parameter.copy_(torch.randn_like(parameter) * 0.15)
        for name, buffer in model.named_buffers():
            if "e_score_correction_bias" in name:
                buffer.copy_(torch.randn_like(buffer) * 0.1)
    return model


def save_tiny(family, folder, seed=0, **kwargs):
    """Save a tiny model into `folder` and return it."""
    model = tiny_model(family, seed)
    model.save_pretrained(folder, **kwargs)
    return model


def on_meta(folder, dtype=torch.float32):
    """The stock model of a saved folder on meta, as a user's script builds it."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


def random_ids(rows, tokens, seed=0):
    """Random token ids [rows, tokens] without the special ones."""
    return torch.randint(3, VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def padded_batch(tokens=11, padding=4, seed=1):
    """Two rows, the second with left padding: input ids and mask."""
    ids = random_ids(2, tokens, seed)
    mask = torch.ones_like(ids)
    ids[1, :padding] = 0
    mask[1, :padding] = 0
    return {"input_ids": ids, "attention_mask": mask}
