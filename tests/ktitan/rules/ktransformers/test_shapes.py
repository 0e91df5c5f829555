"""Files of the shapes that KTransformers v0.3.2 ships: what becomes of every module, and that translations keep it."""

import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, DeepseekV3Config

import ktitan
import ktitan.operators
from ktitan.errors import HardwareError
from ktitan.hardware import Cpu, Gpu, Hardware, Memory
from ktitan.plan import make_plan
from ktitan.rules import parse_rules, parse_text, to_yaml

from support.tiny_models import CONFIGS

FILES = Path(__file__).with_name("files")
GIB = 1 << 30

PROJECTIONS = r"self_attn\.(?!kv_b)\w+_proj(_with_mqa)?|mlp\.(shared_experts?\.)?(gate|up|down)_proj"
EVERYWHERE = "cuda:0"

# Path of a module -> operator, device ("layer" is that of the layer) and, where it differs, what reads prompts.
SHAPES = {
    "deepseek_v3": {
        rf".*({PROJECTIONS})|lm_head": ("linear.torch", "layer"),
        r".*self_attn": ("attention.torch", "layer"),
        r".*norm": ("norm.torch", "layer"),
        r".*(kv_b_proj|gate)": ("keep", "layer"),
        r".*mlp\.experts": ("experts.torch", "cpu"),
        r".*embed_tokens": ("keep", "cpu"),
    },
    "deepseek_v3_8gpu": {
        rf".*({PROJECTIONS})": ("linear.torch", "layer"),
        r".*self_attn": ("attention.torch", "layer"),
        r"model\.layers\..*(norm|kv_b_proj|gate)": ("keep", "layer"),
        r"model\.norm|lm_head": ("keep", "cuda:7"),
        r".*mlp\.experts": ("experts.torch", "cpu"),
        r".*embed_tokens": ("keep", "cpu"),
    },
    "mixtral": {
        rf".*({PROJECTIONS})": ("linear.torch", "layer"),
        r".*(norm|gate|lm_head)": ("keep", "layer"),
        r".*mlp\.experts": ("experts.torch", "cpu"),
        r".*embed_tokens": ("keep", "cpu"),
    },
    "qwen2_moe": {
        rf".*({PROJECTIONS})": ("linear.torch", "layer"),
        r".*self_attn": ("attention.torch", "layer"),
        r"model\.layers\..*(norm|gate)": ("keep", "layer"),
        r"model\.norm|lm_head": ("keep", "cuda:1"),
        r"model\.layers\.[01]\.mlp\.experts": ("experts.torch", "cpu", "prefill: experts.torch on cuda:0"),
        r"model\.layers\.2\.mlp\.experts": ("experts.torch", "cuda:1"),
        r".*embed_tokens": ("keep", "cpu"),
    },
}
FIRST_LAYERS = {
    "deepseek_v3": [0],
    "mixtral": [0],
    "qwen2_moe": [0, 2],
    "deepseek_v3_8gpu": [0, 8, 16, 24, 32, 40, 48, 56],
}


def on_meta(config):
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def full_size():
    return on_meta(DeepseekV3Config())


def machine(gpus):
    cards = tuple(Gpu(i, "card", 80 * GIB, 80 * GIB, (9, 0)) for i in range(gpus))
    memory = Memory(2048 * GIB, 2048 * GIB, None)
    return Hardware(Cpu("test", frozenset(), 4, 4, 4), memory, cards)


def plan_of(model, rules, gpus):
    return make_plan(model, rules, hardware=machine(gpus), device="cuda:0" if gpus else "cpu")


def layer_device(shape, path):
    """The GPU of the layer that a path lies in."""
    number = re.search(r"layers\.(\d+)\.", path)
    return f"cuda:{sum(number is not None and first <= int(number[1]) for first in FIRST_LAYERS[shape][1:])}"


def check_rows(shape, plan):
    """Every row is what the table says, and no line of the table is left over."""
    used = set()
    for row in plan.rows:
        if row.operator == "hop":
            continue
        pattern = next((one for one in SHAPES[shape] if re.fullmatch(one, row.path)), None)
        assert pattern is not None, row
        used.add(pattern)
        operator, device, *prefill = SHAPES[shape][pattern]
        expected = layer_device(shape, row.path) if device == "layer" else device
        assert (row.operator, row.device) == (operator, expected), row
        assert row.notes == "".join(prefill) and row.rule, row
    assert used == set(SHAPES[shape])


@pytest.mark.parametrize(("shape", "gpus"), [("deepseek_v3", 1), ("mixtral", 1), ("qwen2_moe", 2)])
def test_every_module_of_a_tiny_model(shape, gpus):
    plan = plan_of(on_meta(CONFIGS[shape]()), parse_rules(FILES / f"{shape}.yaml"), gpus)
    plan.check()
    check_rows(shape, plan)
    assert len(plan.rule_notes) > 5 and set(plan.rule_notes) <= set(plan.notes)


@pytest.mark.parametrize(("shape", "gpus"), [("deepseek_v3", 1), ("deepseek_v3_8gpu", 8)])
def test_every_module_of_deepseek_v3_in_full_size(full_size, shape, gpus):
    plan = plan_of(full_size, parse_rules(FILES / f"{shape}.yaml"), gpus)
    plan.check()
    check_rows(shape, plan)
    assert sum(row.operator == "experts.torch" for row in plan.rows) == 58
    # Hidden states go on to the next GPU where transfer_map says so, and from each GPU's last layer back.
    returning = [hop.path for hop in plan.hops if re.fullmatch(r"model\.layers\.\d+", hop.path) and hop.returns]
    lasts = [15, 23, 31, 39, 47, 55, 60] if gpus == 8 else []
    assert returning == [f"model.layers.{last}" for last in lasts]


@pytest.mark.parametrize("shape", list(SHAPES))
def test_the_translation_reads_as_the_same_rules(shape):
    rules = parse_rules(FILES / f"{shape}.yaml")
    text = to_yaml(rules)
    again = parse_text(text, "again.yaml")
    assert again == rules and again.faults == () and again.notes == ()
    assert to_yaml(parse_rules(FILES / f"{shape}.yaml")) == text
    without_comments = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    assert [line for line in to_yaml(again).splitlines() if not line.lstrip().startswith("#")] == without_comments
    # Every remark stands in the file, once for each rule that it is about (or once at the top).
    flowing = re.sub(r"\n *#   ", " ", text)
    assert all(flowing.count(f"# - {note.message}") for note in rules.notes)


@pytest.mark.parametrize("shape", ["mixtral", "qwen2_moe"])
def test_the_translation_makes_the_same_plan(shape):
    model = on_meta(CONFIGS[shape]())
    rules = parse_rules(FILES / f"{shape}.yaml")
    plans = [plan_of(model, one, 2) for one in (rules, parse_text(to_yaml(rules)))]
    rows = [[(r.path, r.operator, r.device, r.tier, r.bytes, r.format, r.notes) for r in plan.rows] for plan in plans]
    assert rows[0] == rows[1]


def test_a_machine_without_the_gpu_is_told_so():
    plan = plan_of(on_meta(CONFIGS["mixtral"]()), parse_rules(FILES / "mixtral.yaml"), 0)
    with pytest.raises(HardwareError, match=r"mixtral\.yaml: device cuda:0 is not there .*\n.*present: cpu"):
        plan.check()


ON_THE_CPU = r"""
- match: {name: "^model\\.layers\\.(?!.*kv_b_proj).*$", class: torch.nn.Linear}
  replace:
    class: ktransformers.operators.linear.KTransformersLinear
    kwargs: {generate_device: cpu, prefill_device: cpu, generate_op: KLinearCPUInfer, prefill_op: KLinearTorch}
- match: {name: "\\.experts$"}
  replace:
    class: ktransformers.operators.experts.KTransformersExperts
    kwargs: {generate_device: cpu, prefill_device: cpu}
  recursive: False
- match: {name: "self_attn$"}
  replace: {class: ktransformers.operators.attention.KDeepseekV2Attention}
- match: {class: ktransformers.models.modeling_deepseek_v3.DeepseekV3RMSNorm}
  replace: {class: ktransformers.operators.layernorm.RMSNorm}
- match: {class: ktransformers.models.modeling_mixtral.MixtralRMSNorm}
  replace: {class: default}
- match: {name: "gate_proj"}
  replace: {class: default}
"""


def test_a_file_for_the_cpu_loads_and_answers_as_ours_does(tiny_gguf, tmp_path, caplog):
    rules = tmp_path / "kt.yaml"
    rules.write_text(ON_THE_CPU)
    model, tokenizer = ktitan.load(tiny_gguf, rules=rules, device="cpu")
    said = [record.getMessage() for record in caplog.records if record.name == "ktitan.api.planning"]
    assert said == list(model.ktitan.plan.rule_notes)  # once each
    operators = {row.operator for row in model.ktitan.plan.rows}
    assert {"linear.cpu", "experts.cpu", "attention.torch", "norm.torch", "keep"} == operators
    notes = " ".join(model.ktitan.plan.notes)
    assert "kt.yaml:15: optional, and no module matches" in notes
    assert re.search(r"kt\.yaml:17: fully shadowed: all \d+ modules it matches are taken by \S*kt\.yaml:2", notes)
    ids = tokenizer("Once upon a time", return_tensors="pt").input_ids
    ours, _ = ktitan.load(tiny_gguf, rules="auto", device="cpu")
    with torch.no_grad():
        logits, expected = model(ids).logits, ours(ids).logits
    assert torch.nn.functional.cosine_similarity(logits, expected, dim=-1).min() > 0.999
