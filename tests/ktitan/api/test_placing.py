"""Placing by hand: layers, experts and tensors of llama.cpp's options, on the tiny model and on planned GPUs."""

from dataclasses import replace

import pytest
import torch

import ktitan
from ktitan.api import ALL_LAYERS, PlacedRules, plan_model
from ktitan.api.planning import plan_injection, prepare
from ktitan.errors import HardwareError, RuleError, UnsupportedError
from ktitan.hardware import Gpu

from support.tiny_models import CONFIGS

LAYERS = 7  # of the tiny model; the first is dense


@pytest.fixture(scope="module")
def ready(tiny_gguf):
    return prepare(tiny_gguf, device="cpu")


@pytest.fixture
def planned(ready):
    """Device of each module by its path, as the plan has it on a machine with two GPUs, and the plan."""
    gpus = tuple(Gpu(index, "GPU", 80 << 30, 79 << 30, (9, 0)) for index in range(2))
    hardware = replace(ready.hardware, gpus=gpus)

    def plan(device="cuda:0", **wanted):
        made = plan_injection(ready.model, PlacedRules(**wanted), ready.sources, device=device, hardware=hardware)
        made.check()
        return {row.path: str(row.device) for row in made.rows}, made

    return plan


def layers_on(devices, device, part="self_attn.q_a_proj"):
    return [n for n in range(LAYERS) if devices.get(f"model.layers.{n}.{part}") == device]


@pytest.mark.parametrize("count", [0, 1, 3, LAYERS, LAYERS + 1, ALL_LAYERS])
def test_the_last_layers_are_on_the_gpu_and_the_output_counts_as_one(planned, count):
    devices, _ = planned(gpu_layers=count)
    on_gpu = max(0, min(count, LAYERS + 1) - 1)  # llama.cpp: i_gpu_start = max(n_layer + 1 - N, 0)
    assert layers_on(devices, "cuda:0") == list(range(LAYERS - on_gpu, LAYERS))
    assert layers_on(devices, "cpu") == list(range(LAYERS - on_gpu))
    assert devices["lm_head"] == devices["model.norm"] == ("cuda:0" if count else "cpu")
    assert devices["model.embed_tokens"] == "cpu"


@pytest.mark.parametrize(("count", "first"), [(0, 1), (1, 1), (3, 3), (ALL_LAYERS, LAYERS)])
def test_experts_of_the_first_layers_are_on_the_cpu_and_stay_packed(planned, count, first):
    devices, plan = planned(cpu_experts=count)
    assert layers_on(devices, "cpu", "mlp.experts") == list(range(1, first))
    assert layers_on(devices, "cuda:0", "mlp.experts") == list(range(first, LAYERS))
    assert layers_on(devices, "cuda:0", "mlp.shared_experts.up_proj") == list(range(1, LAYERS))
    assert any("became no rules" in note for note in plan.rule_notes) == (count < 2)
    packed = {row.path for row in plan.rows if row.operator == "experts.cpu"}
    assert packed == {f"model.layers.{n}.mlp.experts" for n in range(1, first)}


def test_tensors_are_placed_by_their_gguf_names(planned):
    tensors = (r"blk\.0\.=CPU", r"blk\.[12]\.ffn_.*_exps=CUDA1", "exps=CPU", r"blk\.3\.attn=CPU", "^output=CUDA1")
    devices, plan = planned(tensors=tensors, gpu_layers=ALL_LAYERS)
    assert layers_on(devices, "cuda:1", "mlp.experts") == [1, 2]
    assert layers_on(devices, "cpu", "mlp.experts") == [3, 4, 5, 6]
    assert layers_on(devices, "cpu") == [0, 3]
    assert devices["model.layers.3.self_attn"] == "cpu" and devices["model.layers.3.mlp.gate"] == "cuda:0"
    assert devices["lm_head"] == devices["model.norm"] == "cuda:1"
    layer = next(decision for decision in plan.hops if decision.path == "model.layers.0")
    assert str(layer.device) == "cpu"  # a layer whose every weight moves goes as a whole
    noted = "\n".join(plan.rule_notes)
    assert all(f"-ot {text}: became rules:" in noted for text in tensors)


def test_a_rule_files_own_rules_keep_their_operators(ready, planned, tmp_path):
    file = tmp_path / "rules.yaml"
    file.write_text(
        "version: 1\ninclude: [deepseek_v3.yaml]\nrules:\n"
        "  - match: {name: '.*\\.mlp\\.experts', layers: 2-3}\n"
        "    replace: {class: experts.torch, kwargs: {device: cuda:1}}\n"
    )
    devices, plan = planned(rules=file, cpu_experts=3)
    assert layers_on(devices, "cpu", "mlp.experts") == [1, 2]
    assert layers_on(devices, "cuda:1", "mlp.experts") == [3]
    operators = {row.path: row.operator for row in plan.rows if row.operator != "hop"}
    assert operators["model.layers.1.mlp.experts"] == "experts.cpu"
    assert operators["model.layers.2.mlp.experts"] == operators["model.layers.3.mlp.experts"] == "experts.torch"


def test_a_gpu_that_is_not_there_is_refused(tiny_gguf):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    plan = plan_model(tiny_gguf, PlacedRules(gpu_layers=3), device="cpu")
    with pytest.raises(HardwareError, match="device cuda:0 is not there") as caught:
        plan.check()
    assert caught.value.where == "-ngl 3"


def test_tensor_overrides_that_cannot_be_followed_are_told_together(tiny_gguf):
    tensors = ("ffn_up_exps=CPU", "x=Vulkan0", "none_such=CPU", "(=CPU", "CPU")
    with pytest.raises(RuleError) as caught:
        plan_model(tiny_gguf, PlacedRules(tensors=tensors), device="cpu")
    assert [fault.where for fault in caught.value.faults] == [f"-ot {text}" for text in tensors]
    text = str(caught.value)
    for reason in ("but not blk.1.ffn_gate_exps.weight", "'Vulkan0' is no place", "finds no tensor", "bad regex"):
        assert reason in text


def test_a_family_without_gguf_names_and_a_model_without_experts(tmp_path):
    for family in ("olmoe", "llama"):
        CONFIGS[family]().save_pretrained(tmp_path / family)
    with pytest.raises(UnsupportedError, match="have no GGUF names"):
        plan_model(tmp_path / "olmoe", PlacedRules(tensors=("exps=CPU",)), device="cpu")
    with pytest.raises(RuleError, match="no routed experts"):
        plan_model(tmp_path / "llama", PlacedRules(cpu_experts=ALL_LAYERS), device="cpu")


def test_placed_rules_load_and_answer_the_same(tiny_gguf):
    placed, tokenizer = ktitan.load(tiny_gguf, rules=PlacedRules(gpu_layers=0, cpu_experts=3), device="cpu")
    plain, _ = ktitan.load(tiny_gguf, device="cpu")
    ids = tokenizer("The matrix is a linear map", return_tensors="pt").input_ids
    with torch.inference_mode():
        assert torch.equal(placed(ids).logits, plain(ids).logits)
