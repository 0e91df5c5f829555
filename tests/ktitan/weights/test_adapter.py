"""What is refused of a PEFT adapter before any model is looked at, and what is read of it."""

import json

import pytest
import torch
from safetensors.torch import save_file

from ktitan.errors import FormatError, UnsupportedError, WeightError
from ktitan.weights.adapter import open_adapter

from support.adapters import pair_name, random_tensors, write_adapter

PATH = "model.layers.0.self_attn.q_proj"


@pytest.fixture
def pair():
    return random_tensors({PATH: (6, 8)})


def messages(faults):
    return [fault.message for fault in faults]


def test_pairs_are_read_in_float32(tmp_path):
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in random_tensors({PATH: (6, 8)}).items()}
    adapter = open_adapter(write_adapter(tmp_path, tensors))
    found = adapter.pairs[PATH]
    assert (found.rank, found.scaling, found.held_bytes, adapter.base) == (4, 2.5, 4 * 4 * 14, "a/base")
    a, b = adapter.read(found, torch.device("cpu"))
    assert torch.equal(a, tensors[pair_name(PATH, "A")].float())
    assert torch.equal(b, tensors[pair_name(PATH, "B")].float())
    assert (adapter.unsupported, adapter.broken) == ([], [])


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"use_dora": True}, "use_dora is DoRA"),
        ({"use_qalora": True}, "use_qalora is QALoRA"),
        ({"lora_bias": True}, "lora_bias adds biases"),
        ({"bias": "all"}, "bias trains biases of the model"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save replaces whole modules"),
        ({"target_parameters": ["mlp.experts.down_proj"]}, "target_parameters adapts parameters such as fused experts"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices trains single tokens"),
        ({"layer_replication": [[0, 2]]}, "layer_replication repeats layers"),
        ({"alora_invocation_tokens": [5]}, "alora_invocation_tokens adapts only"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights 'pissa_niter_4' is not known"),
        ({"a_setting_of_next_year": {"x": 1}}, "a_setting_of_next_year may change what is computed"),
        ({"peft_type": "IA3"}, "is an adapter of type 'IA3'"),
    ],
)
def test_settings_that_change_the_numbers_are_refused(pair, tmp_path, setting, words):
    adapter = open_adapter(write_adapter(tmp_path, pair, **setting))
    (fault,) = adapter.unsupported
    assert fault.message.startswith(words)
    assert fault.where == str(tmp_path / "adapter_config.json")
    assert fault.remedy


def test_settings_that_change_nothing_pass(pair, tmp_path):
    idle = {"use_dora": False, "modules_to_save": None, "lora_dropout": 0.3, "init_lora_weights": "gaussian"}
    more = {"target_modules": ["q_proj"], "runtime_config": {"a": 1}, "fan_in_fan_out": True, "layer_replication": []}
    adapter = open_adapter(write_adapter(tmp_path, pair, **idle, **more))
    assert (adapter.unsupported, adapter.broken, list(adapter.pairs)) == ([], [], [PATH])


def test_surplus_tensors_are_told_apart(pair, tmp_path):
    one = torch.ones(3, 4)
    surplus = {
        "base_model.model.model.embed_tokens.lora_embedding_A": "adapts an embedding",
        f"base_model.model.{PATH}.lora_magnitude_vector.weight": "is a magnitude of DoRA",
        f"base_model.model.{PATH}.lora_B.bias": "is a bias of an adapter",
        "base_model.model.lm_head.base_layer.weight": "is a copy of the model's own weights",
        "base_model.model.model.layers.0.mlp.experts.base_layer.lora_A.weight": "adapts a parameter inside a module",
        "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta": "trains single tokens",
        "base_model.model.lm_head.weight": "is no A or B of a linear module",
        "model.layers.0.self_attn.k_proj.lora_A.weight": "is no A or B of a linear module",
    }
    adapter = open_adapter(write_adapter(tmp_path, pair | {name: one.clone() for name in surplus}))
    assert list(adapter.pairs) == [PATH]
    found = {fault.where: fault.message for fault in adapter.unsupported}
    assert len(found) == 7
    for name, message in found.items():
        assert message.startswith(surplus[name])
    assert any(message.endswith("and 1 more") for message in found.values())


def test_halves_and_shapes_that_do_not_fit_are_refused_together(tmp_path):
    tensors = random_tensors({PATH: (6, 8), "b": (6, 8, 3), "c": (6, 8), "d": (6, 8), "e": (6, 8)})
    del tensors[pair_name("c", "B")], tensors[pair_name("d", "A")]
    tensors[pair_name("e", "A")] = torch.ones(4, 6, dtype=torch.int8)
    adapter = open_adapter(write_adapter(tmp_path, tensors))
    assert list(adapter.pairs) == [PATH]
    assert messages(adapter.broken) == [
        "A has shape (3, 6) and B (8, 3), not (4, in) and (out, 4) as its config says",
        "there is a lora_A.weight but no lora_B.weight",
        "there is a lora_B.weight but no lora_A.weight",
        "A and B are stored as i8 and f32",
    ]


def test_an_adapter_without_tensors_is_refused(tmp_path):
    assert messages(open_adapter(write_adapter(tmp_path, {})).broken) == ["holds no tensors"]


def test_pickled_weights_are_not_read(pair, tmp_path):
    write_adapter(tmp_path, pair)
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(WeightError, match="pickled") as caught:
        open_adapter(tmp_path)
    assert "save_pretrained" in caught.value.remedy
    (tmp_path / "adapter_model.bin").unlink()
    with pytest.raises(WeightError, match="holds no adapter_model"):
        open_adapter(tmp_path)


def test_folders_and_files_that_are_no_adapter(pair, tmp_path):
    with pytest.raises(WeightError, match="can be read"):
        open_adapter(tmp_path / "nowhere")
    with pytest.raises(UnsupportedError, match="several adapters"):
        open_adapter([tmp_path, tmp_path])
    write_adapter(tmp_path, pair)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    with pytest.raises(FormatError, match="not a valid safetensors file"):
        open_adapter(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '"x"', "\udcff", "[" * 100_000])
def test_configs_that_are_no_json_object(pair, tmp_path, text):
    save_file(pair, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(FormatError):
        open_adapter(tmp_path)


@pytest.mark.parametrize(
    "setting",
    [
        {"lora_alpha": 10**400},
        {"alpha_pattern": {"q_proj": 10**400}},
        {"alpha_pattern": {"(?i)q_proj": 2}},
        {"rank_pattern": {"(?i)q_proj": 4}},
    ],
)
def test_numbers_and_patterns_that_python_refuses_are_refused(pair, tmp_path, setting):
    with pytest.raises(FormatError):
        open_adapter(write_adapter(tmp_path, pair, **setting))


def test_values_of_a_config_are_refused_together(pair, tmp_path):
    write_adapter(tmp_path, pair, rank_pattern={"(": 4, "x": "four"}, alpha_pattern=[1])
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**config, "r": 0, "lora_alpha": True}))
    with pytest.raises(FormatError) as caught:
        open_adapter(tmp_path)
    assert messages(caught.value.faults) == [
        "r is 0, not a rank",
        "lora_alpha is True, not a number",
        "rank_pattern says 4 for '('",
        "rank_pattern says 'four' for 'x'",
        "alpha_pattern is [1], not a table",
    ]
