"""Writes tiny GGUF files for tests, with llama.cpp's value changes done by hand and not by the code under test."""

import struct

import gguf
import numpy as np
import torch

KINDS = {"f32": "F32", "f16": "F16", "q8_0": "Q8_0", "q4_0": "Q4_0"}
ALPHABET = [f"<{number:02x}>" for number in range(64)]


# -- raw bytes, for files that no writer would write -------------------------------------------------------------------


def text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def pair(key, kind, value):
    """One metadata entry; `value` is already in bytes."""
    return text(key) + struct.pack("<I", kind) + value


def entry(name, dims, kind, offset):
    """One row of the tensor table; `dims` in ggml's order."""
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def raw_gguf(pairs=(), entries=(), data=b"", alignment=32, version=3, counts=None):
    """A whole file; an architecture is always in it."""
    pairs = [pair("general.architecture", 8, text("llama")), *pairs]
    counts = counts or (len(entries), len(pairs))
    head = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(pairs) + b"".join(entries)
    return head + b"\0" * (-len(head) % alignment) + data


# -- whole models ------------------------------------------------------------------------------------------------------


def write_model(path, architecture, metadata, tensors, kind="f32", tokens=ALPHABET, **writer_options):
    """A GGUF file; matrices of whole blocks are stored as `kind`, the rest and routers as F32 like llama.cpp does."""
    writer = gguf.GGUFWriter(path, architecture, **writer_options)
    for key, value in {"tokenizer.ggml.tokens": tokens, **metadata}.items():
        full = key if key.startswith(("tokenizer.", "general.")) else f"{architecture}.{key}"
        add_value(writer, full, value)
    for name, tensor in tensors.items():
        add_tensor(writer, name, tensor, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_value(writer, key, value):
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def add_tensor(writer, name, tensor, kind):
    array = np.ascontiguousarray(tensor.detach().numpy().astype(np.float32))
    if kind == "f32" or array.ndim == 1 or array.shape[-1] % 32 or "ffn_gate_inp" in name:
        writer.add_tensor(name, array)
        return
    wanted = gguf.GGMLQuantizationType[KINDS[kind]]
    writer.add_tensor(name, gguf.quants.quantize(array, wanted), raw_dtype=wanted)


def rounded(tensor, kind):
    """What is left of a matrix after it was stored row by row as `kind`."""
    if kind == "f32" or tensor.dim() == 1:
        return tensor
    wanted = gguf.GGMLQuantizationType[KINDS[kind]]
    stored = gguf.quants.quantize(tensor.detach().numpy(), wanted)
    return torch.from_numpy(gguf.quants.dequantize(stored, wanted)).view(tensor.shape)


def common_metadata(config):
    return {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": float(config.rope_parameters.get("rope_theta", 0.0)),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
    }


def llama_metadata(config):
    metadata = common_metadata(config) | {
        "attention.head_count_kv": config.num_key_value_heads,
        "rope.dimension_count": config.head_dim,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
    }
    if config.model_type == "mixtral":
        metadata |= {"expert_count": config.num_local_experts, "expert_used_count": config.num_experts_per_tok}
    return metadata


def qwen_metadata(config):
    """Qwen 2, 2.5 and 3; only configs with a head size of their own get one written."""
    metadata = common_metadata(config) | {"attention.head_count_kv": config.num_key_value_heads}
    head = getattr(config, "head_dim", None)
    if head is not None:
        metadata |= {"attention.key_length": head, "attention.value_length": head}
    if config.model_type.endswith("_moe"):
        metadata |= {
            "expert_count": config.num_experts,
            "expert_used_count": config.num_experts_per_tok,
            "expert_feed_forward_length": config.moe_intermediate_size,
        }
    if config.model_type == "qwen2_moe":
        metadata["expert_shared_feed_forward_length"] = config.shared_expert_intermediate_size
    return metadata


def gemma_metadata(config):
    """Neither the windowed layers, nor their rotary base, nor the scale of queries are written."""
    whole = config.rope_parameters["full_attention"]
    metadata = common_metadata(config) | {
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "rope.freq_base": float(whole["rope_theta"]),
    }
    if config.sliding_window is not None:
        metadata["attention.sliding_window"] = config.sliding_window
    if whole["rope_type"] == "linear":
        metadata |= {"rope.scaling.type": "linear", "rope.scaling.factor": whole["factor"]}
    if config.final_logit_softcapping:
        metadata["final_logit_softcapping"] = config.final_logit_softcapping
    return metadata


ARCHITECTURES = {
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "gemma3_text": "gemma3",
    "qwen2": "qwen2",
    "qwen2_moe": "qwen2moe",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
}


def describe(config, split=True):
    """Architecture and metadata of a config's file."""
    architecture = ARCHITECTURES.get(config.model_type, "llama")
    if architecture == "deepseek2":
        return architecture, deepseek_metadata(config, split)
    make = {"gemma3": gemma_metadata, "llama": llama_metadata}.get(architecture, qwen_metadata)
    return architecture, make(config)


def deepseek_metadata(config, split=True):
    """As newer converters (kv_b in two tensors) or as older ones write it."""
    metadata = common_metadata(config) | {
        "attention.kv_lora_rank": config.kv_lora_rank,
        "rope.dimension_count": config.qk_rope_head_dim,
        "leading_dense_block_count": config.first_k_dense_replace,
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_shared_count": config.n_shared_experts,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_weights_scale": config.routed_scaling_factor,
        "expert_group_count": config.n_group or 1,
        "expert_group_used_count": config.topk_group or 1,
    }
    key = config.qk_nope_head_dim + config.qk_rope_head_dim
    if split:
        metadata |= {
            "attention.head_count_kv": 1,
            "attention.key_length": config.kv_lora_rank + config.qk_rope_head_dim,
            "attention.value_length": config.kv_lora_rank,
            "attention.key_length_mla": key,
            "attention.value_length_mla": config.v_head_dim,
        }
    else:
        metadata |= {
            "attention.head_count_kv": config.num_attention_heads,
            "attention.key_length": key,
            "attention.value_length": config.v_head_dim,
        }
    if config.q_lora_rank is not None:
        metadata["attention.q_lora_rank"] = config.q_lora_rank
    if config.model_type == "deepseek_v3":
        metadata |= {"expert_gating_func": 2, "expert_weights_norm": config.norm_topk_prob}
    return metadata


PLAIN = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}
GEMMA_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def gguf_tensors(model, split=True, single_experts=False):
    """The model's tensors as llama.cpp's converter would write them."""
    config, tensors = model.config, {}
    for name, tensor in model.state_dict().items():
        if config.model_type == "gemma3_text" and name.endswith("norm.weight"):
            tensor = tensor + 1
        if name in OUTER:
            tensors[OUTER[name]] = tensor
            continue
        _, _, layer, rest = name.split(".", 3)
        for stored, value in layer_tensors(config, rest, tensor, split, single_experts).items():
            tensors[f"blk.{layer}.{stored}"] = value
    if config.tie_word_embeddings:
        tensors.pop("output.weight", None)
    return tensors


def layer_tensors(config, rest, tensor, split, single_experts):
    module, _, suffix = rest.rpartition(".")
    llama = config.model_type in ("llama", "mixtral")
    if module == "self_attn.q_proj":
        return {f"attn_q.{suffix}": interleaved(tensor, config.num_attention_heads) if llama else tensor}
    if module == "self_attn.k_proj":
        return {f"attn_k.{suffix}": interleaved(tensor, config.num_key_value_heads) if llama else tensor}
    if module == "self_attn.kv_b_proj":
        return split_kv_b(config, tensor) if split else {"attn_kv_b.weight": tensor}
    if rest == "mlp.gate.e_score_correction_bias":
        return {"exp_probs_b.bias": tensor}
    if module == "mlp.experts":
        return expert_tensors(suffix, tensor, single_experts)
    if module == "mlp.shared_expert_gate":
        return {"ffn_gate_inp_shexp.weight": tensor.squeeze(0)}
    if config.model_type == "gemma3_text" and module in GEMMA_NORMS:
        return {f"{GEMMA_NORMS[module]}.{suffix}": tensor}
    return {f"{PLAIN[module]}.{suffix}": tensor}


def interleaved(tensor, heads):
    """Rows in the order of rotary pairs: of each head row 0, row d/2, row 1, row d/2 + 1, ..."""
    return tensor.reshape(heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def split_kv_b(config, tensor):
    heads = config.num_attention_heads
    by_head = tensor.view(heads, config.qk_nope_head_dim + config.v_head_dim, config.kv_lora_rank)
    key, value = by_head.split([config.qk_nope_head_dim, config.v_head_dim], dim=1)
    return {"attn_k_b.weight": key.transpose(1, 2), "attn_v_b.weight": value}


def expert_tensors(suffix, tensor, single):
    if suffix == "down_proj":
        roles = {"down": tensor}
    else:
        roles = dict(zip(("gate", "up"), tensor.chunk(2, dim=1), strict=True))
    if not single:
        return {f"ffn_{role}_exps.weight": value for role, value in roles.items()}
    return {f"ffn_{role}.{number}.weight": one for role, value in roles.items() for number, one in enumerate(value)}


# -- models ------------------------------------------------------------------------------------------------------------


def random_model(config, seed=0):
    """A stock model with random weights (norms and biases too) in float32; + 1 is exact for those of norms."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            mean = 1.0 if "norm" in name else 0.0
            tensor.copy_(mean + torch.randn_like(tensor) * (0.1 if tensor.dim() == 1 else 0.2))
            if "norm" in name:
                tensor.copy_((tensor * 1024).round() / 1024)
    return model


def model_from_gguf(source, config=None):
    """The stock model that a source describes, filled through the bindings, in float32."""
    from transformers import AutoModelForCausalLM

    from ktitan.weights.gguf_config import config_from_gguf
    from ktitan.weights.gguf_names import gguf_bindings

    config = config or config_from_gguf(source)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    bindings, surplus = gguf_bindings(model, source)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    assert surplus == []
    assert set(bindings) == set(model.state_dict()) - tied
    filled = {name: made.dense(torch.float32) for name, made in bindings.items()}
    model.load_state_dict(filled, strict=False, assign=True)
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config)
    if config.model_type == "gemma3_text":
        model.model.embed_tokens.embed_scale = torch.tensor(model.model.embed_tokens.scalar_embed_scale)
    return model


def logits(model, tokens=12, positions=None):
    """Logits [T, vocabulary] of a fixed random prompt."""
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(0, model.config.vocab_size, (1, tokens), generator=generator)
    with torch.no_grad():
        return model(ids, position_ids=positions).logits[0]
