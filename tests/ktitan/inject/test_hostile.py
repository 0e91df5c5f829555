"""Cases that once gave wrong numbers without an error, or a half-done state."""

import json
import threading

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    BambaConfig,
    Gemma2Config,
    Gemma3Config,
    MambaConfig,
    OPTConfig,
)

import ktitan
from ktitan.engine.generate import generate_tokens

from support.tiny_models import CONFIGS, on_meta, random_ids, save_tiny, tiny_model

LINEARS = {"version": 1, "rules": [{"match": {"class": "Linear"}, "replace": {"class": "linear.torch"}}]}
SMALL = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def saved(config, folder, kind=AutoModelForCausalLM):
    torch.manual_seed(0)
    model = kind.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.15)
    model.save_pretrained(folder)
    with torch.device("meta"):
        return model, kind.from_config(type(config).from_pretrained(folder), dtype=torch.float32)


def logits(model, ids=None):
    with torch.inference_mode():
        return model(input_ids=random_ids(1, 9) if ids is None else ids).logits


def test_given_weights_replace_real_tensors_of_kept_modules(tmp_path):
    stock = save_tiny("llama", tmp_path, seed=1)
    model = tiny_model("llama", seed=2)  # real, but not the checkpoint
    ktitan.optimize_and_load(model, LINEARS, weights=tmp_path, device="cpu")
    assert torch.equal(logits(model), logits(stock))


def test_a_half_real_model_takes_everything_from_the_source(tmp_path):
    stock = save_tiny("llama", tmp_path)
    model = on_meta(tmp_path)
    model.model.norm.weight = nn.Parameter(torch.full((48,), 5.0))
    ktitan.optimize_and_load(model, LINEARS, weights=tmp_path, device="cpu")
    assert torch.equal(logits(model), logits(stock))


def test_router_biases_stay_float32_in_a_bfloat16_model(tmp_path):
    save_tiny("deepseek_v3", tmp_path)
    file = tmp_path / "model.safetensors"
    state = load_file(file)
    state = {n: 9 + torch.rand(8) * 0.05 if "correction_bias" in n else t.bfloat16() for n, t in state.items()}
    save_file(state, file, metadata={"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    stock = AutoModelForCausalLM.from_pretrained(tmp_path)
    model = ktitan.optimize_and_load(on_meta(tmp_path, torch.bfloat16), "auto", weights=tmp_path, device="cpu")
    for name, buffer in stock.state_dict().items():
        if "gate" in name and "proj" not in name:
            mine = model.state_dict()[name]
            assert mine.dtype is buffer.dtype and torch.equal(mine, buffer), name
    model.ktitan.undo()
    assert torch.equal(logits(model), logits(stock))


def test_undo_restores_buffers_that_no_checkpoint_holds(tmp_path):
    stock, model = saved(Gemma2Config(**SMALL, head_dim=12), tmp_path)
    ktitan.optimize_and_load(model, "auto", weights=tmp_path, device="cpu")
    assert (logits(model) - logits(stock)).abs().max() < 1e-4
    model.ktitan.undo()
    assert not any(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])
    assert torch.equal(logits(model), logits(stock))


def test_towers_initialise_their_own_buffers(tmp_path):
    text = {name: value for name, value in SMALL.items()}
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 28,
        "patch_size": 14,
    }
    config = Gemma3Config(text_config={**text, "head_dim": 12}, mm_tokens_per_image=4, vision_config=vision)
    stock, model = saved(config, tmp_path, AutoModelForImageTextToText)
    ktitan.optimize_and_load(model, "auto", weights=tmp_path, device="cpu")
    assert (logits(model) - logits(stock)).abs().max() < 1e-4


def test_auto_keeps_stock_what_its_operators_cannot_replace(tmp_path):
    config = OPTConfig(
        vocab_size=131, hidden_size=48, ffn_dim=80, num_hidden_layers=2, num_attention_heads=4, word_embed_proj_dim=48
    )
    stock, model = saved(config, tmp_path)
    ktitan.optimize_and_load(model, "auto", weights=tmp_path, device="cpu")
    notes = [note for note in model.ktitan.plan.notes if "kept stock" in note]
    assert notes and "OPTLearnedPositionalEmbedding" in notes[0]
    assert (logits(model) - logits(stock)).abs().max() < 1e-4
    kept = next(row for row in model.ktitan.plan.rows if row.path.endswith("embed_positions"))
    assert kept.operator == "keep"


def test_a_family_without_experts_in_any_layer_loads(tmp_path):
    config = CONFIGS["qwen3_moe"]()
    config.mlp_only_layers = list(range(config.num_hidden_layers))
    stock, model = saved(config, tmp_path)
    ktitan.optimize_and_load(model, "auto", weights=tmp_path, device="cpu")
    assert (logits(model) - logits(stock)).abs().max() < 1e-4


class Shared(nn.Module):
    """One layer under two names."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = self.a

    def forward(self, x):
        return self.b(self.a(x))


def test_a_module_under_two_paths_is_refused_before_anything_changes():
    model = Shared()
    with pytest.raises(ktitan.RuleError, match="a and b are one module"):
        ktitan.optimize_and_load(model, LINEARS, device="cpu")
    assert type(model.a) is nn.Linear and model.a is model.b


def two_phases(tmp_path):
    save_tiny("llama", tmp_path)
    replace = {"class": "linear.torch", "prefill": {"kwargs": {"dtype": "bfloat16"}}}
    rules = {"version": 1, "rules": [{"match": {"class": "Linear", "name": ".*mlp.*"}, "replace": replace}]}
    return ktitan.optimize_and_load(on_meta(tmp_path), rules, weights=tmp_path, device="cpu")


def test_phases_of_two_threads_do_not_mix(tmp_path):
    model = two_phases(tmp_path)

    def generate():
        how = {"max_new_tokens": 24, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
        return torch.stack(model.generate(random_ids(1, 6), **how).logits)

    wanted, stop = generate(), threading.Event()

    def prefill():
        while not stop.is_set():
            logits(model, random_ids(1, 40))

    thread = threading.Thread(target=prefill)
    thread.start()
    try:
        for _ in range(3):
            assert torch.equal(generate(), wanted)
    finally:
        stop.set()
        thread.join()


def test_the_base_model_alone_sees_its_phase(tmp_path):
    model = two_phases(tmp_path)
    ids = random_ids(1, 9)
    with torch.inference_mode():
        alone = model.model(input_ids=ids).last_hidden_state
        assert torch.equal(model.lm_head(alone), model(input_ids=ids).logits)


@pytest.mark.parametrize(
    "config",
    [
        MambaConfig(vocab_size=131, hidden_size=32, state_size=8, num_hidden_layers=2, intermediate_size=64),
        BambaConfig(
            **SMALL, mamba_n_heads=12, mamba_d_head=8, mamba_n_groups=1, mamba_d_state=8, attn_layer_indices=[1]
        ),
    ],
    ids=["mamba", "bamba"],
)
def test_stream_gives_what_generate_gives_for_running_states(tmp_path, config):
    stock, model = saved(config, tmp_path)
    ktitan.optimize_and_load(model, "auto", weights=tmp_path, device="cpu")
    ids = random_ids(1, 40)
    wanted = stock.generate(ids, max_new_tokens=10, do_sample=False, eos_token_id=None)[0, 40:].tolist()
    assert list(generate_tokens(model, ids, max_new_tokens=10, ignore_eos=True)) == wanted


@pytest.mark.parametrize(
    ("argument", "error"),
    [
        ({"device": "junk"}, ktitan.HardwareError),
        ({"device": ""}, ktitan.HardwareError),
        ({"device": "cuda:77"}, ktitan.HardwareError),
        ({"budget": 5}, ktitan.BudgetError),
        ({"budget": b"x"}, ktitan.BudgetError),
        ({"context": "5"}, ktitan.PlanError),
        ({"context": 0}, ktitan.PlanError),
        ({"context": True}, ktitan.PlanError),
        ({"weights": 5}, ktitan.WeightError),
        ({"weights": ""}, ktitan.WeightError),
        ({"weights": [""]}, ktitan.WeightError),
    ],
)
def test_odd_arguments_are_named(tmp_path, argument, error):
    save_tiny("llama", tmp_path)
    with pytest.raises(error) as caught:
        ktitan.optimize_and_load(on_meta(tmp_path), LINEARS, **{"weights": tmp_path, "device": "cpu", **argument})
    assert caught.value.faults[0].remedy


@pytest.mark.parametrize("device", ["cpu:0", torch.device("cpu")])
def test_a_device_has_one_name(tmp_path, device):
    save_tiny("llama", tmp_path)
    model = ktitan.optimize_and_load(on_meta(tmp_path), LINEARS, weights=tmp_path, device=device)
    assert {row.device for row in model.ktitan.plan.rows} == {"cpu"}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"hidden_act": "nope"}, ktitan.UnsupportedError),
        ({"dtype": "junk"}, ktitan.UnsupportedError),
        ({"rope_parameters": {"rope_type": "nope", "rope_theta": 1e4}}, ktitan.UnsupportedError),
        ({"num_attention_heads": 0}, ktitan.FormatError),
        ({"rms_norm_eps": "x"}, ktitan.UnsupportedError),
        ({"model_type": "no-such-model"}, ktitan.UnsupportedError),
        (None, ktitan.FormatError),
    ],
)
def test_broken_configs_are_refused_by_name(tmp_path, change, error):
    save_tiny("llama", tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    file.write_text("null" if change is None else json.dumps({**config, **change}))
    with pytest.raises(error, match=str(tmp_path)) as caught:
        ktitan.plan_model(tmp_path, device="cpu")
    assert caught.value.remedy


def test_more_layers_in_the_file_than_in_the_config_are_said(tmp_path):
    save_tiny("llama", tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "num_hidden_layers": 2}))
    with pytest.raises(ktitan.WeightError, match=r"layers\.2"):
        ktitan.optimize_and_load(on_meta(tmp_path), LINEARS, weights=tmp_path, device="cpu")


class TestRegistering:
    def test_only_operators_with_a_kind_and_a_name(self):
        with pytest.raises(ktitan.PlanError, match="no operator"):
            ktitan.register_operator("x.no")(nn.Linear)
        for name in (5, "keep", ""):
            with pytest.raises(ktitan.PlanError, match="not an operator's name"):
                ktitan.register_operator(name)

    def test_a_taken_name_leaves_both_classes_as_they_were(self):
        from ktitan.operators import TorchLinear

        with pytest.raises(ktitan.PlanError, match="registered twice"):
            ktitan.register_operator("norm.torch")(TorchLinear)
        assert TorchLinear.operator_name == "linear.torch"
