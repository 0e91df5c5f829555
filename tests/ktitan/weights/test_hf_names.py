"""Checkpoint names of families against transformers' own loader."""

from functools import partial

import pytest
import torch
from transformers import AutoModelForCausalLM, GptOssConfig, PhimoeConfig, Qwen2MoeConfig
from transformers.core_model_loading import MergeModulelist, WeightConverter

from ktitan.errors import WeightError
from ktitan.weights import hf_names
from ktitan.weights.expression import Converted, Stored
from ktitan.weights.hf_names import hf_bindings
from ktitan.weights.opening import open_source

from support.tiny_models import CONFIGS, on_meta, save_tiny

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
OTHERS = {
    "gpt_oss": lambda: GptOssConfig(**SMALL, head_dim=8, num_local_experts=4, num_experts_per_tok=2),
    "phimoe": lambda: PhimoeConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2),
    "qwen2_moe": lambda: Qwen2MoeConfig(
        **SMALL, moe_intermediate_size=16, shared_expert_intermediate_size=16, num_experts=4, num_experts_per_tok=2
    ),
}


@pytest.mark.parametrize("family", [*CONFIGS, *OTHERS])
def test_every_tensor_is_what_the_stock_loader_makes(tmp_path, family):
    if family in CONFIGS:
        stock = save_tiny(family, tmp_path)
    else:
        torch.manual_seed(0)
        stock = AutoModelForCausalLM.from_config(OTHERS[family](), dtype=torch.float32)
        stock.save_pretrained(tmp_path)
    bindings, surplus, faults = hf_bindings(on_meta(tmp_path), open_source(tmp_path))
    assert surplus == [] and faults == []
    state = stock.state_dict()
    assert set(state) - set(bindings) <= set(stock.all_tied_weights_keys)
    for name, expression in bindings.items():
        assert torch.equal(expression.dense(torch.float32), state[name].float()), name


def test_experts_are_read_one_by_one(tmp_path):
    save_tiny("mixtral", tmp_path)
    bindings, _, _ = hf_bindings(on_meta(tmp_path), open_source(tmp_path))
    names = [leaf.info.name for leaf in bindings["model.layers.1.mlp.experts.gate_up_proj"].leaves()]
    assert len(names) == 10 and all("experts" in name for name in names)


@pytest.mark.parametrize("answer", ["fails", "other shape", "other name"])
def test_a_conversion_of_transformers_that_does_not_give_the_tensor(tmp_path, monkeypatch, answer):
    """Whatever its operations are, a checkpoint that they do not fit is an error with the tensor's name."""
    stock = AutoModelForCausalLM.from_config(OTHERS["gpt_oss"](), dtype=torch.float32)
    stock.save_pretrained(tmp_path)
    model, source = on_meta(tmp_path), open_source(tmp_path)
    name = "model.norm.weight"
    part = Stored(source, source.tensors[name])
    converter = WeightConverter(name, name, operations=[MergeModulelist(dim=0)])

    def convert(self, *arguments, **options):
        if answer == "fails":
            raise RuntimeError("split_with_sizes expects 64")
        return {name: torch.ones(1)} if answer == "other shape" else {"x": torch.ones(32)}

    monkeypatch.setattr(WeightConverter, "convert", convert)
    run = partial(hf_names._run, converter, name, {name: [part]}, model, name, (32,))
    with pytest.raises(WeightError, match=r"transformers (cannot make|makes)") as caught:
        Converted([part], (32,), run).dense(torch.float32)
    assert caught.value.where == name and "different checkpoints" in caught.value.remedy
