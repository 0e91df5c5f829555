"""Bindings: every HuggingFace tensor comes back exactly, whatever the converter did to it."""

import pytest
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

import ktitan
from ktitan.errors import UnsupportedError
from ktitan.weights.gguf_config import config_from_gguf
from ktitan.weights.gguf_names import gguf_bindings
from ktitan.weights.gguf_source import open_gguf

from support.gguf_files import (
    deepseek_metadata,
    describe,
    gguf_tensors,
    interleaved,
    logits,
    model_from_gguf,
    random_model,
    rounded,
    write_model,
)

SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
MLA = {
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 32,
    "v_head_dim": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
}
GQA = {"num_key_value_heads": 2, "head_dim": 16}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
GEMMA = {
    "num_hidden_layers": 7,
    "query_pre_attn_scalar": 16,
    "sliding_window": 5,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
CONFIGS = {
    "llama": LlamaConfig(**SIZES | GQA),
    "llama with biases": LlamaConfig(**SIZES | GQA, attention_bias=True, mlp_bias=True),
    "llama tied": LlamaConfig(**SIZES | GQA, tie_word_embeddings=True),
    "mixtral": MixtralConfig(**SIZES | GQA, num_local_experts=4, num_experts_per_tok=2),
    "qwen2": Qwen2Config(**SIZES, num_key_value_heads=2),
    "qwen2 tied": Qwen2Config(**SIZES, num_key_value_heads=2, tie_word_embeddings=True),
    "qwen2 moe": Qwen2MoeConfig(**SIZES | EXPERTS, num_key_value_heads=2, shared_expert_intermediate_size=32),
    "qwen3": Qwen3Config(**SIZES | GQA),
    "qwen3 moe": Qwen3MoeConfig(**SIZES | GQA | EXPERTS, norm_topk_prob=True),
    "gemma3": Gemma3TextConfig(**SIZES | GQA | GEMMA),
    "deepseek v2 lite": DeepseekV2Config(**SIZES | MLA, q_lora_rank=None, n_group=1, topk_group=1),
    "deepseek v2": DeepseekV2Config(
        **SIZES | MLA, q_lora_rank=32, n_group=4, topk_group=2, topk_method="group_limited_greedy"
    ),
    "deepseek v3": DeepseekV3Config(**SIZES | MLA, q_lora_rank=32, n_group=4, topk_group=2),
}


def save(folder, model, kind="f32", extra=None, drop=(), **layout):
    config = model.config
    architecture, metadata = describe(config, layout.get("split", True))
    tensors = {name: one for name, one in gguf_tensors(model, **layout).items() if name not in drop}
    return write_model(folder / "model.gguf", architecture, metadata, {**tensors, **(extra or {})}, kind)


def bare_model(config):
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def bind(path, config):
    return gguf_bindings(bare_model(config), open_gguf(path))


@pytest.mark.parametrize("case", CONFIGS)
def test_float32_weights_and_logits_are_exact(tmp_path, case):
    reference = random_model(CONFIGS[case])
    model = model_from_gguf(open_gguf(save(tmp_path, reference)))
    assert type(model) is type(reference)
    for name, tensor in reference.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    assert torch.equal(logits(model), logits(reference))


@pytest.mark.parametrize("case", ["qwen2", "qwen2 moe", "qwen3 moe", "gemma3"])
def test_operators_take_what_the_file_holds(tmp_path, case):
    reference = random_model(CONFIGS[case])
    path = save(tmp_path, reference)
    model = ktitan.optimize_and_load(bare_model(config_from_gguf(open_gguf(path))), "auto", weights=path, device="cpu")
    kinds = {row.operator.partition(".")[0] for row in model.ktitan.plan.rows if row.operator != "keep"}
    assert {"attention", "norm", "linear"} <= kinds
    torch.testing.assert_close(logits(model), logits(reference), atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("kind", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("case", ["llama", "mixtral", "qwen2 moe", "deepseek v3"])
def test_quantised_weights_are_those_of_the_file(tmp_path, case, kind):
    reference = random_model(CONFIGS[case])
    bindings, surplus = bind(save(tmp_path, reference, kind), reference.config)
    assert surplus == []
    for name, tensor in reference.state_dict().items():
        found = bindings[name].dense(torch.float32)
        if "kv_b_proj" in name and kind != "f16":  # its keys were quantised transposed
            assert (found - tensor).abs().max() < 0.2
        elif name.endswith(("mlp.gate.weight", "shared_expert_gate.weight")):
            assert torch.equal(found, tensor)
        else:
            assert torch.equal(found, rounded(tensor, kind)), name


def test_packed_formats_and_bytes_are_known_without_reading(tmp_path):
    reference = random_model(CONFIGS["mixtral"])
    bindings, _ = bind(save(tmp_path, reference, "q4_0"), reference.config)
    experts = bindings["model.layers.1.mlp.experts.gate_up_proj"]
    assert experts.shape == (4, 192, 64)
    assert experts.formats == ("q4_0",)
    assert experts.stored_bytes == 4 * 192 * 64 // 32 * 18
    assert [leaf.info.name for leaf in experts.leaves()] == ["blk.1.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight"]


def test_rows_of_k_go_by_the_kv_heads():
    # Four heads share two of size 4; with four heads for k the rows would stay where they are.
    assert interleaved(torch.arange(8), 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


@pytest.mark.parametrize("kind", ["f32", "q8_0"])
def test_rows_of_k_come_back(tmp_path, kind):
    config = LlamaConfig(**SIZES | {"hidden_size": 32, "num_key_value_heads": 2, "head_dim": 4})
    reference = random_model(config)
    name = "model.layers.0.self_attn.k_proj.weight"
    rows = torch.arange(8.0).unsqueeze(1).expand(8, 32) * 127 / 8
    reference.state_dict()[name].copy_(rows)
    bindings, _ = bind(save(tmp_path, reference, kind), config)
    torch.testing.assert_close(bindings[name].dense(torch.float32), rows, atol=1e-2, rtol=0)
    assert bindings[name].dense(torch.float32)[:, 0].argsort().tolist() == list(range(8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_one_in_norms_of_gemma_is_taken_away_once(tmp_path, dtype):
    reference = random_model(CONFIGS["gemma3"])
    norms = [name for name in reference.state_dict() if name.endswith("norm.weight")]
    for name in norms:
        reference.state_dict()[name].zero_()
    reference.model.norm.weight.data.fill_(2**-12)  # would be lost if 1 were added in bfloat16
    source = open_gguf(save(tmp_path, reference))
    bindings, _ = gguf_bindings(bare_model(CONFIGS["gemma3"]), source)
    assert len(norms) == 7 * 6 + 1
    for name in norms:
        expected = 2**-12 if name == "model.norm.weight" else 0
        assert torch.equal(
            bindings[name].dense(dtype), torch.full(reference.state_dict()[name].shape, expected, dtype=dtype)
        )
    stored = torch.empty(16)
    source.read_into("blk.3.attn_k_norm.weight", stored)
    assert torch.equal(stored, torch.ones(16))


@pytest.mark.parametrize("case", ["mixtral", "qwen3 moe", "deepseek v2", "deepseek v3"])
def test_one_tensor_an_expert(tmp_path, case):
    reference = random_model(CONFIGS[case])
    source = open_gguf(save(tmp_path, reference, single_experts=True))
    assert "blk.1.ffn_up.3.weight" in source.tensors
    assert torch.equal(logits(model_from_gguf(source)), logits(reference))


def test_a_lacking_expert_shows_in_the_shape(tmp_path):
    reference = random_model(CONFIGS["mixtral"])
    path = save(tmp_path, reference, single_experts=True, drop=("blk.0.ffn_up.2.weight", "blk.0.ffn_down.3.weight"))
    bindings, _ = bind(path, reference.config)
    for role in ("gate_up_proj", "down_proj"):
        name = f"model.layers.0.mlp.experts.{role}"
        assert bindings[name].shape != tuple(reference.state_dict()[name].shape)


def test_fused_gate_and_up(tmp_path):
    reference = random_model(CONFIGS["mixtral"])
    fused = {
        f"blk.{layer}.ffn_gate_up_exps.weight": reference.state_dict()[f"model.layers.{layer}.mlp.experts.gate_up_proj"]
        for layer in (0, 1)
    }
    drop = [f"blk.{layer}.ffn_{role}_exps.weight" for layer in (0, 1) for role in ("gate", "up")]
    source = open_gguf(save(tmp_path, reference, extra=fused, drop=drop))
    assert torch.equal(logits(model_from_gguf(source)), logits(reference))


@pytest.mark.parametrize("case", ["deepseek v2 lite", "deepseek v3"])
def test_both_layouts_of_kv_b_give_equal_logits(tmp_path, case):
    reference = random_model(CONFIGS[case])
    expected = logits(reference)
    for split in (True, False):
        source = open_gguf(save(tmp_path, reference, split=split))
        assert ("blk.0.attn_k_b.weight" in source.tensors) is split
        assert torch.equal(logits(model_from_gguf(source)), expected)


def test_kv_b_beside_its_split_copies(tmp_path):
    reference = random_model(CONFIGS["deepseek v2 lite"])
    both = {name: one for name, one in gguf_tensors(reference, split=False).items() if "attn_kv_b" in name}
    flat = {
        name: one.reshape(-1, one.shape[-1])
        for name, one in gguf_tensors(reference).items()
        if "attn_k_b" in name or "attn_v_b" in name
    }
    source = open_gguf(save(tmp_path, reference, extra=both | flat))
    assert torch.equal(logits(model_from_gguf(source)), logits(reference))


def test_flat_split_kv_b(tmp_path):
    reference = random_model(CONFIGS["deepseek v2 lite"])
    flat = {
        name: one.reshape(-1, one.shape[-1])
        for name, one in gguf_tensors(reference).items()
        if "attn_k_b" in name or "attn_v_b" in name
    }
    source = open_gguf(save(tmp_path, reference, extra=flat))
    assert len(source.tensors["blk.0.attn_k_b.weight"].shape) == 2
    assert torch.equal(logits(model_from_gguf(source)), logits(reference))


def test_kv_b_in_an_unknown_layout_is_refused_by_name(tmp_path):
    reference = random_model(CONFIGS["deepseek v2 lite"])
    path = save(tmp_path, reference, extra={"blk.1.attn_k_b.weight": torch.ones(4, 32, 31).transpose(1, 2)})
    with pytest.raises(UnsupportedError, match=r"blk\.1\.attn_k_b\.weight"):
        bind(path, reference.config)


def test_gates_with_one_output_are_stored_as_vectors(tmp_path):
    config = LlamaConfig(**SIZES | {"num_key_value_heads": 4, "head_dim": 16, "vocab_size": 1})
    reference = random_model(config)
    vector = {"output.weight": reference.lm_head.weight.detach().flatten()}
    bindings, _ = bind(save(tmp_path, reference, extra=vector), config)
    assert torch.equal(bindings["lm_head.weight"].dense(torch.float32), reference.lm_head.weight)


def test_a_head_of_its_own_is_filled_from_the_embedding_when_the_file_has_none(tmp_path):
    reference = random_model(CONFIGS["llama tied"])
    path = save(tmp_path, reference)
    bindings, surplus = bind(path, CONFIGS["llama"])
    assert surplus == []
    assert torch.equal(bindings["lm_head.weight"].dense(torch.float32), reference.model.embed_tokens.weight)


def test_surplus_tensors_are_named(tmp_path):
    reference = random_model(CONFIGS["deepseek v3"])
    extra = {"blk.0.attn_q_norm.weight": torch.ones(8), "blk.2.attn_norm.weight": torch.ones(64)}
    _, surplus = bind(save(tmp_path, reference, extra=extra), reference.config)
    assert surplus == list(extra)


def test_layers_that_predict_further_tokens_are_no_surplus(tmp_path):
    config = CONFIGS["deepseek v3"]
    reference = random_model(config)
    metadata = deepseek_metadata(config) | {"block_count": 3, "nextn_predict_layers": 1}
    tensors = gguf_tensors(reference) | {"blk.2.attn_norm.weight": torch.ones(64), "blk.2.nextn.enorm": torch.ones(64)}
    source = open_gguf(write_model(tmp_path / "m.gguf", "deepseek2", metadata, tensors))
    assert config_from_gguf(source).num_hidden_layers == 2
    assert gguf_bindings(bare_model(config), source)[1] == []


def test_rotary_factors_are_surplus_only_where_the_config_ignores_them(tmp_path):
    reference = random_model(CONFIGS["llama"])
    for factors, expected in ((torch.full((8,), 2.0), ["rope_freqs.weight"]), (torch.ones(8), [])):
        path = save(tmp_path, reference, extra={"rope_freqs.weight": factors})
        assert bind(path, reference.config)[1] == expected
        assert bind(path, config_from_gguf(open_gguf(path)))[1] == []


def test_a_missing_tensor_is_left_out(tmp_path):
    reference = random_model(CONFIGS["llama"])
    bindings, _ = bind(save(tmp_path, reference, drop=("blk.1.attn_v.weight",)), reference.config)
    assert set(reference.state_dict()) - set(bindings) == {"model.layers.1.self_attn.v_proj.weight"}


def test_a_model_of_another_family_is_refused(tmp_path):
    path = save(tmp_path, random_model(CONFIGS["llama"]))
    with pytest.raises(UnsupportedError, match=r"'llama', the module is a 'qwen2'"):
        bind(path, Qwen2Config(**SIZES, num_key_value_heads=2))
