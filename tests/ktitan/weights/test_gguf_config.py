"""Configs from metadata alone, against the configs that the files were written from."""

import math

import pytest
import torch
from transformers import (
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

from ktitan.errors import FormatError, UnsupportedError
from ktitan.weights.gguf_config import config_from_gguf, generation_config_from_gguf
from ktitan.weights.gguf_source import open_gguf

from support.gguf_files import (
    describe,
    gguf_tensors,
    llama_metadata,
    logits,
    model_from_gguf,
    random_model,
    write_model,
)

SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MLA = {
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 32,
    "v_head_dim": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}


def llama(**changes):
    return LlamaConfig(**SIZES | {"num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5} | changes)


def mixtral(**changes):
    values = {"num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2}
    return MixtralConfig(**SIZES | values | changes)


def deepseek_v2(**changes):
    return DeepseekV2Config(**SIZES | MLA | {"n_group": 1, "topk_group": 1} | changes)


def deepseek_v3(**changes):
    values = {"q_lora_rank": 32, "n_group": 4, "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 2.5}
    return DeepseekV3Config(**SIZES | MLA | values | changes)


def qwen2(**changes):
    return Qwen2Config(**SIZES | {"num_key_value_heads": 2} | changes)


def qwen2_moe(**changes):
    values = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    return Qwen2MoeConfig(
        **SIZES | values | {"num_key_value_heads": 2, "shared_expert_intermediate_size": 40} | changes
    )


def qwen3(**changes):
    return Qwen3Config(**SIZES | {"num_key_value_heads": 2, "head_dim": 24} | changes)


def qwen3_moe(**changes):
    values = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}
    return Qwen3MoeConfig(**SIZES | values | {"num_key_value_heads": 2, "head_dim": 24} | changes)


def gemma3(**changes):
    values = {"num_key_value_heads": 2, "head_dim": 24, "query_pre_attn_scalar": 24, "sliding_window": 5}
    return Gemma3TextConfig(**SIZES | values | {"num_hidden_layers": 7} | changes)


GEMMA_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}


def write(folder, config, extra=(), drop=(), **options):
    """The GGUF file of a random model with `config`; metadata changed by `extra` and `drop`."""
    architecture, metadata = describe(config, options.get("split", True))
    metadata = {key: value for key, value in {**metadata, **dict(extra)}.items() if key not in drop}
    model = random_model(config)
    return model, write_model(folder / "model.gguf", architecture, metadata, gguf_tensors(model, **options))


def read(folder, config, extra=(), drop=(), **options):
    return config_from_gguf(open_gguf(write(folder, config, extra, drop, **options)[1]))


def comparable(config):
    ours = {"architectures", "_name_or_path", "dtype", "transformers_version"}
    return {key: value for key, value in config.to_dict().items() if key not in ours}


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize(
    "config",
    [
        llama(),
        llama(num_key_value_heads=4, head_dim=8, rope_parameters={"rope_type": "default", "rope_theta": 5e5}),
        llama(tie_word_embeddings=True),
        llama(attention_bias=True, mlp_bias=True),
        llama(rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}),
        mixtral(),
        deepseek_v2(),
        deepseek_v2(q_lora_rank=32, n_group=4, topk_group=2, topk_method="group_limited_greedy"),
        deepseek_v3(),
        deepseek_v3(norm_topk_prob=False, q_lora_rank=None),
        qwen2(),
        qwen2(head_dim=24),
        qwen2(rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6}, tie_word_embeddings=True),
        qwen2_moe(),
        qwen2_moe(qkv_bias=False),
        qwen3(),
        qwen3(attention_bias=True),
        qwen3_moe(),
        gemma3(),
        gemma3(rope_parameters=GEMMA_ROPE, final_logit_softcapping=30.0),
        gemma3(tie_word_embeddings=False, attention_bias=True),
    ],
    ids=lambda config: config.model_type,
)
def test_the_config_comes_back(tmp_path, config, split):
    extra = {}
    if config.rope_parameters.get("rope_type") == "linear":
        extra = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    found = read(tmp_path, config, extra, split=split)
    assert type(found) is type(config)
    assert comparable(found) == comparable(config)
    assert found.architectures == [type(config).__name__.replace("Config", "ForCausalLM")]
    assert found.name_or_path == str(tmp_path / "model.gguf")


def test_defaults_of_absent_keys(tmp_path):
    drop = ("attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.freq_base")
    drop += ("rope.dimension_count", "tokenizer.ggml.padding_token_id")
    found = read(tmp_path, llama(num_key_value_heads=4), drop=drop)
    assert (found.num_key_value_heads, found.head_dim, found.pad_token_id) == (4, 16, None)
    assert found.rope_parameters == {"rope_type": "default", "rope_theta": 10000.0}


def test_a_value_a_layer_is_one_value_when_all_agree(tmp_path):
    assert read(tmp_path, llama(), {"attention.head_count": [4, 4]}).num_attention_heads == 4
    with pytest.raises(UnsupportedError, match=r"llama\.attention\.head_count differs"):
        read(tmp_path, llama(), {"attention.head_count": [4, 2]})


def test_unknown_architecture(tmp_path):
    path = write_model(tmp_path / "m.gguf", "mamba", {}, {"token_embd.weight": torch.ones(4, 4)})
    with pytest.raises(UnsupportedError, match=r"'mamba'.*known: deepseek2, gemma3, llama"):
        config_from_gguf(open_gguf(path))


@pytest.mark.parametrize(
    ("config", "extra", "drop", "kind", "cause"),
    [
        (llama(), {}, ("block_count",), FormatError, "lacks 'llama.block_count'"),
        (llama(), {"block_count": 2**31}, (), FormatError, "2147483648 blocks, there are tensors for 2"),
        (llama(), {"attention.head_count": "four"}, (), FormatError, "should be a whole number"),
        (llama(), {"attention.head_count": 0}, (), FormatError, "should be a whole number"),
        (llama(), {"attention.head_count_kv": 3}, (), FormatError, "cannot share"),
        (llama(), {"rope.dimension_count": 8}, (), UnsupportedError, "differ in size"),
        (llama(), {"rope.scaling.type": "longrope"}, (), UnsupportedError, "'longrope'"),
        (qwen3_moe(), {}, ("expert_count",), FormatError, "lacks 'qwen3moe.expert_count'"),
        (gemma3(), {}, ("rope.freq_base",), FormatError, "lacks 'gemma3.rope.freq_base'"),
        (gemma3(), {"block_count": 2**31}, (), FormatError, "2147483648 blocks, there are tensors for 7"),
        (gemma3(), {"block_count": 2**31, "nextn_predict_layers": 2**31 - 7}, (), FormatError, "tensors for 7"),
        (llama(), {"tokenizer.ggml.tokens": 64}, (), FormatError, "should be a list of str"),
        (llama(), {"tokenizer.ggml.tokens": 6.5}, (), FormatError, "should be a list of str"),
        (gemma3(), {"attn_logit_softcapping": 50.0}, (), UnsupportedError, "does not cap"),
        (gemma3(), {"attention.sliding_window_pattern": [True, False]}, (), FormatError, "2 entries for 7 layers"),
        (deepseek_v3(), {"expert_gating_func": 4}, (), UnsupportedError, "expert_gating_func 4"),
        (deepseek_v2(), {"attention.temperature_scale": 0.1}, (), UnsupportedError, "temperature_scale"),
        (deepseek_v2(), {}, ("expert_count",), FormatError, "lacks 'deepseek2.expert_count'"),
        (deepseek_v2(), {"attention.key_length_mla": 8}, (), FormatError, "key_length_mla"),
    ],
)
def test_refusals(tmp_path, config, extra, drop, kind, cause):
    with pytest.raises(kind, match=cause):
        read(tmp_path, config, extra, drop)


def test_a_group_count_that_is_absent_is_one_group_and_is_said(tmp_path, caplog):
    found = read(tmp_path, deepseek_v3(), drop=("expert_group_count", "expert_group_used_count"))
    assert (found.n_group, found.topk_group) == (1, 1)
    assert "grouped" in caplog.text


@pytest.mark.parametrize("make", [qwen2_moe, qwen3_moe])
def test_expert_sizes_that_a_file_does_not_state(tmp_path, make):
    drop = ("expert_feed_forward_length", "expert_shared_feed_forward_length")
    found = read(tmp_path, make(moe_intermediate_size=48), drop=drop)
    assert found.moe_intermediate_size == 48
    assert getattr(found, "shared_expert_intermediate_size", 96) == 96


@pytest.mark.parametrize(
    ("extra", "drop", "window", "whole"),
    [
        ({}, (), 5, [5]),
        ({"attention.sliding_window_pattern": 3}, (), 5, [2, 5]),
        ({"attention.sliding_window_pattern": [True, False, True, True, False, False, True]}, (), 5, [1, 4, 5]),
        ({}, ("attention.sliding_window",), None, list(range(7))),
    ],
    ids=["usual period", "period", "list", "no window"],
)
def test_windowed_layers(tmp_path, extra, drop, window, whole):
    found = read(tmp_path, gemma3(), extra, drop)
    assert found.sliding_window == window
    assert [layer for layer, kind in enumerate(found.layer_types) if kind == "full_attention"] == whole


def test_the_largest_gemma_scales_queries_by_its_width(tmp_path):
    assert read(tmp_path, gemma3(num_hidden_layers=62)).query_pre_attn_scalar == 64 // 4


def test_rotary_bases_of_gemma(tmp_path):
    found = read(tmp_path, gemma3(rope_parameters=GEMMA_ROPE), {"rope.freq_base_swa": 2e4})
    assert found.rope_parameters["full_attention"] == GEMMA_ROPE["full_attention"]
    assert found.rope_parameters["sliding_attention"] == {"rope_type": "default", "rope_theta": 2e4}


# -- rotary scaling ----------------------------------------------------------------------------------------------------

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LLAMA3_FACTORS = torch.tensor([1, 1, 1, 1, 2.69453, 8, 8, 8])


def with_factors(folder, config, factors):
    model = random_model(config)
    tensors = {**gguf_tensors(model), "rope_freqs.weight": factors}
    return model, write_model(folder / "model.gguf", "llama", llama_metadata(config), tensors)


def test_llama3_factors_become_its_scaling(tmp_path):
    reference, path = with_factors(tmp_path, llama(rope_parameters=LLAMA3), LLAMA3_FACTORS)
    source = open_gguf(path)
    assert config_from_gguf(source).rope_parameters == LLAMA3
    positions = torch.tensor([[0, 100, 9000]])
    expected = logits(reference, 3, positions)
    for config in (None, reference.config):
        assert torch.equal(logits(model_from_gguf(source, config), 3, positions), expected)


def test_other_factors_are_taken_as_they_are(tmp_path):
    factors = torch.rand(8) * 3 + 2
    reference, path = with_factors(tmp_path, llama(), factors)
    model = model_from_gguf(open_gguf(path))
    assert model.config.rope_parameters["rope_type"] == "longrope"
    for last in (200, 9000):
        positions = torch.tensor([[0, 100, last]])
        reference.model.rotary_emb.inv_freq = model.model.rotary_emb.original_inv_freq * factors
        without = logits(reference, 3, positions)
        reference.model.rotary_emb.inv_freq = reference.model.rotary_emb.original_inv_freq / factors
        # At position 9000 a frequency's last bit turns a pair by 1e-3.
        torch.testing.assert_close(logits(model, 3, positions), logits(reference, 3, positions), atol=5e-3, rtol=0)
        assert (without - logits(reference, 3, positions)).abs().max() > 5e-2


def test_factors_of_one_are_no_scaling(tmp_path):
    _, path = with_factors(tmp_path, llama(), torch.ones(8))
    assert config_from_gguf(open_gguf(path)).rope_parameters["rope_type"] == "default"


@pytest.mark.parametrize(
    ("factors", "cause"),
    [
        (torch.ones(7) * 2, "7 factors"),
        (torch.ones(1, 8), "not one factor"),
        (torch.ones(1 << 17), "not one factor"),
        (torch.zeros(8), "zero"),
        (torch.full((8,), math.nan), "fin"),
    ],
)
def test_senseless_factors_are_refused(tmp_path, factors, cause):
    _, path = with_factors(tmp_path, llama(), factors)
    with pytest.raises(FormatError, match=cause):
        config_from_gguf(open_gguf(path))


YARN_CASES = {
    "both 0.707": (40.0, {"mscale": 0.707, "mscale_all_dim": 0.707}, {"yarn_log_multiplier": 0.0707}, 1.0, 1.58963),
    "both 1": (16.0, {"mscale": 1.0, "mscale_all_dim": 1.0}, {"yarn_log_multiplier": 0.1}, 1.0, 1.63139),
    "neither": (16.0, {}, {}, 1.27726, 1.0),
    "explicit": (16.0, {"attention_factor": 1.0}, {"yarn_attn_factor": 1.0}, 1.0, 1.0),
}


@pytest.mark.parametrize("case", YARN_CASES)
@pytest.mark.parametrize("make", [deepseek_v2, deepseek_v3])
def test_yarn_has_two_corrections(tmp_path, case, make):
    factor, scales, keys, rotary, softmax = YARN_CASES[case]
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": factor, "original_max_position_embeddings": 64}
    reference, path = write(
        tmp_path,
        make(rope_parameters={**yarn, "beta_fast": 32.0, "beta_slow": 1.0, **scales}),
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": factor,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.yarn_beta_fast": 32.0,
            "rope.scaling.yarn_beta_slow": 1.0,
            **{f"rope.scaling.{key}": value for key, value in keys.items()},
        },
    )
    model = model_from_gguf(open_gguf(path))
    attention = model.model.layers[0].self_attn
    assert comparable(model.config) == comparable(reference.config)
    assert model.model.rotary_emb.attention_scaling == pytest.approx(rotary, abs=1e-5)
    assert attention.scaling * math.sqrt(40) == pytest.approx(softmax, abs=1e-5)
    positions = torch.tensor([[0, 1, 200]])
    assert torch.equal(logits(model, 3, positions), logits(reference, 3, positions))


@pytest.mark.parametrize("make", [qwen2, qwen3_moe])
def test_yarn_of_qwen_has_one(tmp_path, make):
    yarn = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 64}
    keys = {"type": "yarn", "factor": 4.0, "original_context_length": 64}
    reference, path = write(
        tmp_path, make(rope_parameters=yarn), {f"rope.scaling.{key}": value for key, value in keys.items()}
    )
    model = model_from_gguf(open_gguf(path))
    assert comparable(model.config) == comparable(reference.config)
    assert model.model.rotary_emb.attention_scaling == pytest.approx(1 + 0.1 * math.log(4))
    positions = torch.tensor([[0, 1, 200]])
    assert torch.equal(logits(model, 3, positions), logits(reference, 3, positions))


@pytest.mark.parametrize(
    ("config", "more", "usual"),
    [(llama(), {}, 1 + 0.1 * math.log(16)), (deepseek_v3(), {"yarn_log_multiplier": 0.1}, 1.0)],
)
def test_relative_attention_factor_multiplies(tmp_path, config, more, usual):
    keys = {"type": "yarn", "factor": 16.0, "original_context_length": 64, "attn_factor": 0.5, **more}
    found = read(tmp_path, config, {f"rope.scaling.{key}": value for key, value in keys.items()})
    assert found.rope_parameters["attention_factor"] == pytest.approx(0.5 * usual)


# -- ends --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, 2),
        ({"eot_token_id": 7}, [2, 7]),
        ({"eot_token_id": 7, "eom_token_id": 9}, [2, 7, 9]),
        ({"eot_token_id": 2}, 2),
        ({"eot_token_id": 2**32 - 1}, 2),
    ],
)
def test_every_end_counts(tmp_path, keys, expected):
    path = write(tmp_path, llama(), {f"tokenizer.ggml.{key}": value for key, value in keys.items()})[1]
    source = open_gguf(path)
    found = generation_config_from_gguf(source, config_from_gguf(source))
    assert (found.bos_token_id, found.eos_token_id, found.pad_token_id) == (1, expected, 0)


def test_a_turn_end_that_the_template_writes_counts(tmp_path):
    tokens = [f"<{number}>" for number in range(61)] + ["<|end|>", "<|eot_id|>", "<|im_end|>"]
    config = llama()
    metadata = llama_metadata(config) | {
        "tokenizer.chat_template": "{{ messages[0].content }}<|end|><|eot_id|>",
        "tokenizer.ggml.token_type": [1] * 62 + [3, 3],
    }
    path = write_model(tmp_path / "m.gguf", "llama", metadata, gguf_tensors(random_model(config)), tokens=tokens)
    source = open_gguf(path)
    assert generation_config_from_gguf(source, config_from_gguf(source)).eos_token_id == [2, 62]


@pytest.mark.parametrize(
    ("make", "expected"), [(qwen2, [2, 61, 63]), (qwen3_moe, [2, 61, 63]), (gemma3, [2, 62]), (llama, 2)]
)
def test_a_family_s_own_ends_count_without_a_template(tmp_path, make, expected):
    tokens = [f"<{number}>" for number in range(61)] + ["<|endoftext|>", "<end_of_turn>", "<|im_end|>"]
    config = make()
    architecture, metadata = describe(config)
    metadata |= {"tokenizer.ggml.token_type": [1] * 61 + [3] * 3}
    path = write_model(tmp_path / "m.gguf", architecture, metadata, gguf_tensors(random_model(config)), tokens=tokens)
    source = open_gguf(path)
    assert generation_config_from_gguf(source, config_from_gguf(source)).eos_token_id == expected
