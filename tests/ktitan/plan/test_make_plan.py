import json

import pytest
import torch
from transformers import AutoModelForCausalLM, DeepseekV3Config, LlamaConfig

import ktitan
import ktitan.operators
from ktitan.errors import BudgetError, HardwareError, WeightError
from ktitan.hardware import Cpu, Gpu, Hardware, Memory
from ktitan.plan import make_plan
from ktitan.plan.write import to_rules
from ktitan.planner import auto_rules
from ktitan.rules import parse_object, parse_rules, parse_text
from ktitan.tiers import Budget, parse_budget
from ktitan.weights.safetensors_source import open_safetensors

from support.tiny_models import CONFIGS, on_meta, save_tiny

GIB = 1 << 30
CPU = Cpu("test", frozenset(), 4, 4, 4)


def machine(gpus=0, ram=64 * GIB, vram=24 * GIB):
    cards = tuple(Gpu(i, "card", vram, vram, (9, 0)) for i in range(gpus))
    return Hardware(CPU, Memory(ram, ram, None), cards)


def meta_model(family):
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(CONFIGS[family](), dtype=torch.bfloat16)


def plan_of(model, rules, **kwargs):
    kwargs.setdefault("hardware", machine())
    return make_plan(model, parse_object({"version": 1, "rules": rules}, "test"), **kwargs)


def rows(plan, operator=None):
    return {row.path: row for row in plan.rows if operator is None or row.operator == operator}


def rule(replace, recursive=True, **match):
    return {"match": match, "replace": replace, "recursive": recursive}


def test_the_first_operator_of_a_list_that_supports_a_module_is_taken():
    plan = plan_of(
        meta_model("mixtral"),
        [
            rule(
                {"class": ["experts.torch", "linear.torch"], "kwargs": {"dtype": "float32"}},
                name=r".*(experts|lm_head)",
            ),
        ],
    )
    plan.check()
    found = rows(plan)
    assert found["model.layers.0.mlp.experts"].operator == "experts.torch"
    assert (found["lm_head"].operator, found["lm_head"].format) == ("linear.torch", "f32")


@pytest.mark.parametrize(
    ("replace", "message"),
    [
        (
            {"class": ["norm.torch", "experts.torch"]},
            "norm.torch cannot replace Linear.*; experts.torch cannot replace",
        ),
        ({"class": ["linear.torch", "linear.trch"]}, "no operator named 'linear.trch'"),
        ({"class": ["linear.torch", "norm.torch"], "kwargs": {"dtpe": 1}}, "linear.torch or norm.torch has no kwarg"),
        ({"class": ["linear.torch", "norm.torch"], "kwargs": {"dtype": 1}}, "linear.torch: kwarg 'dtype'"),
        ({"class": ["linear.torch", "attention.torch"]}, "cannot be alternatives"),
    ],
)
def test_faults_of_a_list_of_operators(replace, message):
    plan = plan_of(meta_model("llama"), [rule(replace, name="lm_head")])
    with pytest.raises(ktitan.RuleError, match=message):
        plan.check()


def test_own_rules_may_take_over_all_that_an_included_rule_matches(tmp_path):
    (tmp_path / "part.yaml").write_text("version: 1\nrules:\n  - match: {name: lm_head}\n    replace: {class: keep}\n")
    mine = "version: 1\ninclude: [part.yaml]\nrules:\n  - match: {class: Linear}\n    replace: {class: linear.torch}\n"
    (tmp_path / "mine.yaml").write_text(mine)
    plan = make_plan(meta_model("llama"), parse_rules(tmp_path / "mine.yaml"), hardware=machine())
    plan.check()
    assert rows(plan)["lm_head"].operator == "linear.torch"
    twice = mine + "  - match: {name: lm_head}\n    replace: {class: keep}\n"
    (tmp_path / "mine.yaml").write_text(twice)
    with pytest.raises(ktitan.RuleError, match=r"mine\.yaml:6.*\n?.*fully shadowed"):
        make_plan(meta_model("llama"), parse_rules(tmp_path / "mine.yaml"), hardware=machine()).check()


def test_every_wrong_kwarg_is_named_at_once():
    kwargs = {"activations": "bf16", "top_k": 4, "only_packed": 1}
    plan = plan_of(meta_model("mixtral"), [rule({"class": "experts.cpu", "kwargs": kwargs}, name=r".*experts")])
    messages = " ".join(fault.message for fault in plan.faults)
    for name in kwargs:
        assert f"'{name}'" in messages


def test_first_match_wins():
    plan = plan_of(
        meta_model("llama"),
        [
            rule({"class": "keep"}, name=r"model\.layers\.1\..*proj"),
            rule({"class": "linear.torch"}, **{"class": "Linear"}),
        ],
    )
    plan.check()
    found = rows(plan)
    assert found["model.layers.1.mlp.up_proj"].operator == "keep"
    assert found["model.layers.0.mlp.up_proj"].operator == "linear.torch"


def test_placement_is_inherited_from_the_nearest_matched_ancestor():
    plan = plan_of(
        meta_model("llama"),
        [
            rule({"class": "keep", "kwargs": {"device": "cuda:1"}}, name=r"model\.layers\.2"),
            rule({"class": "keep", "kwargs": {"device": "cpu"}}, name=r"model\.layers\.2\.mlp"),
            rule({"class": "linear.torch"}, name=r"model\.layers\.2\..*proj"),
        ],
        hardware=machine(gpus=2),
        device="cuda:0",
    )
    plan.check()
    found = rows(plan)
    assert found["model.layers.2.self_attn.q_proj"].device == "cuda:1"
    assert found["model.layers.2.input_layernorm"].device == "cuda:1"
    assert found["model.layers.2.mlp.up_proj"].device == "cpu"
    assert found["model.layers.1.mlp.up_proj"].device == "cuda:0"


def test_hops_where_a_child_computes_elsewhere():
    plan = plan_of(
        meta_model("llama"),
        [
            rule({"class": "keep", "kwargs": {"device": "cuda:1"}}, name=r"model\.layers\.\d+", layers="1-2"),
            rule({"class": "keep", "kwargs": {"device": "cpu"}}, name=r"model\.layers\.0\.mlp"),
        ],
        hardware=machine(gpus=2),
        device="cuda:0",
    )
    hops = {hop.path: hop for hop in plan.hops}
    assert set(hops) == {"model.layers.1", "model.layers.2", "model.layers.0.mlp"}
    assert not hops["model.layers.1"].returns  # the next layer is on the same device
    assert hops["model.layers.2"].returns
    assert hops["model.layers.0.mlp"].returns
    assert set(rows(plan, "hop")) == set(hops)


def test_a_rule_below_a_replaced_parent_keeps_its_effect_unless_recursive_is_false():
    attention = {"class": "attention.torch"}
    query = rule({"class": "linear.torch"}, name=r"model\.layers\.0\.self_attn\.q_proj")
    open_plan = plan_of(meta_model("llama"), [rule(attention, name=r".*self_attn"), query])
    open_plan.check()
    assert rows(open_plan)["model.layers.0.self_attn.q_proj"].operator == "linear.torch"
    closed = plan_of(meta_model("llama"), [rule(attention, recursive=False, name=r".*self_attn"), query])
    assert "fully shadowed" in str(closed.faults)


def test_bytes_are_those_of_the_tensors(tmp_path):
    save_tiny("mixtral", tmp_path)
    model = on_meta(tmp_path)
    rules, _ = auto_rules(model, Budget(), machine(), "cpu")
    plan = make_plan(model, rules, [open_safetensors(tmp_path)], hardware=machine())
    plan.check()
    assert plan.parts["ram"]["weights"] == sum(p.numel() * p.element_size() for p in model.parameters())
    assert rows(plan)["model.layers.0.mlp.experts"].format == "f32"


def test_tied_tensors_count_once():
    plan = plan_of(meta_model("llama_tied"), [rule({"class": "linear.torch"}, name="lm_head")])
    assert rows(plan)["lm_head"].bytes == 0
    assert "tied to model.embed_tokens" in rows(plan)["lm_head"].notes


def test_a_tied_head_in_another_dtype_counts_in_full(tmp_path):
    stock = save_tiny("llama_tied", tmp_path)
    rules = {
        "version": 1,
        "rules": [
            {"match": {"name": "lm_head"}, "replace": {"class": "linear.torch", "kwargs": {"dtype": "bfloat16"}}}
        ],
    }
    model = ktitan.optimize_and_load(on_meta(tmp_path), rules, weights=tmp_path, device="cpu")
    head = rows(model.ktitan.plan)["lm_head"]
    assert head.bytes == stock.lm_head.weight.numel() * 2 and "tied" not in head.notes
    held = model.ktitan.stats()["resident_bytes"]["ram"]
    assert model.ktitan.plan.parts["ram"]["weights"] <= held


def test_kv_and_workspace_are_in_the_budget():
    model = meta_model("deepseek_v3")
    plan = plan_of(model, [rule({"class": "linear.torch"}, name="lm_head")], context_tokens=100)
    config = model.config
    assert plan.parts["ram"]["kv"] == 128 * 3 * (config.kv_lora_rank + config.qk_rope_head_dim) * 2
    assert plan.parts["ram"]["workspace"] > 0


def test_over_budget_names_the_bytes():
    plan = plan_of(meta_model("llama"), [rule({"class": "keep"}, name="lm_head")], budget=parse_budget("ram=10KiB"))
    with pytest.raises(BudgetError, match=r"10\.0 KiB"):
        plan.check()


def test_a_machine_that_is_too_small_is_found_without_a_budget():
    plan = plan_of(meta_model("llama"), [rule({"class": "keep"}, name="lm_head")], hardware=machine(ram=1000))
    with pytest.raises(BudgetError, match="this machine allows"):
        plan.check()


def test_one_full_card_is_found_however_much_room_the_other_has():
    hardware = machine(gpus=2)
    small = Gpu(0, "card", 10_000, 10_000, (9, 0))
    hardware = Hardware(hardware.cpu, hardware.memory, (small, hardware.gpus[1]))
    plan = plan_of(meta_model("llama"), [rule({"class": "keep"}, name="lm_head")], hardware=hardware, device="cuda:0")
    with pytest.raises(BudgetError, match="cuda:0: needs"):
        plan.check()


def test_the_fill_leaves_room_for_the_context_that_was_asked_for():
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(LlamaConfig(num_hidden_layers=8), dtype=torch.bfloat16)
    hardware = machine(gpus=1, vram=6 * GIB)
    for context in (None, 20_000):
        rules, seeds = auto_rules(model, Budget(), hardware, "cuda:0", context)
        plan = make_plan(model, rules, hardware=hardware, device="cuda:0", seeds=seeds, context_tokens=context)
        plan.check()
        assert bool(seeds) == (context is not None)


@pytest.mark.parametrize("name", ["Linear", "torch.nn.Linear", "torch.nn.modules.linear.Linear", "torch.nn.Module"])
def test_classes_go_by_their_public_names_too(name):
    plan = plan_of(meta_model("llama"), [rule({"class": "keep"}, **{"class": name}) | {"optional": False}])
    assert not plan.faults


@pytest.mark.parametrize(
    ("match", "remedy"),
    [
        ({"class": "LlamaRMSNrm"}, "LlamaRMSNorm"),
        ({"class": "torch.nn.Linaer"}, "Linear"),
        ({"name": r"model\.layers\.\d+\.self_atn"}, "self_attn"),
        ({"name": "model.embed_token"}, "model.embed_tokens"),
    ],
)
def test_a_rule_without_a_hit_gets_the_nearest_name(match, remedy):
    plan = plan_of(meta_model("llama"), [rule({"class": "keep"}, **match)])
    (fault,) = plan.faults
    assert fault.message == "matches no module" and remedy in fault.remedy


def test_an_unknown_source_is_one_fault(tmp_path):
    save_tiny("mixtral", tmp_path)
    experts = {"class": "experts.torch", "source": "elsewhere.gguf"}
    plan = plan_of(
        on_meta(tmp_path), [rule(experts, **{"class": "MixtralExperts"})], sources=[open_safetensors(tmp_path)]
    )
    (fault,) = plan.faults
    assert "elsewhere.gguf" in fault.message and tmp_path.name in fault.remedy


def test_absent_device():
    plan = plan_of(meta_model("llama"), [rule({"class": "keep", "kwargs": {"device": "cuda:1"}}, name="lm_head")])
    with pytest.raises(HardwareError, match="cuda:1 is not there"):
        plan.check()


def test_missing_surplus_and_misshaped_tensors_come_in_one_report(tmp_path):
    from safetensors.torch import load_file, save_file

    save_tiny("mixtral", tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = next(n for n in tensors if "layers.1" in n and "experts.3.w1" in n)
    del tensors[name]
    del tensors["model.norm.weight"]
    tensors["model.layers.0.strange.weight"] = torch.zeros(3)
    tensors["lm_head.weight"] = torch.zeros(5, 48)
    save_file(tensors, file)
    model = on_meta(tmp_path)
    rules, _ = auto_rules(model, Budget(), machine(), "cpu")
    plan = make_plan(model, rules, [open_safetensors(tmp_path)], hardware=machine())
    with pytest.raises(WeightError) as caught:
        plan.check()
    text = str(caught.value)
    for part in (name, "model.norm.weight", "model.layers.0.strange.weight", "[5, 48]"):
        assert part in text
    assert len(caught.value.faults) == 4


def test_budget_fill_puts_what_does_not_fit_on_the_cpu():
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            DeepseekV3Config(num_hidden_layers=6, first_k_dense_replace=1), dtype=torch.bfloat16
        )
    hardware = machine(gpus=1, ram=400 * GIB, vram=40 * GIB)
    rules, seeds = auto_rules(model, Budget(), hardware, "cuda:0")
    plan = make_plan(model, rules, hardware=hardware, device="cuda:0", seeds=seeds)
    plan.check()
    assert 20 * GIB < plan.totals["vram"] < 40 * GIB
    assert plan.totals["ram"] > GIB
    assert "moved by budget" in plan.origin
    assert any(hop.device.type == "cpu" for hop in plan.hops)


def test_full_size_deepseek_v3_is_planned_from_its_config():
    config = DeepseekV3Config()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    rules, _ = auto_rules(model, Budget(), machine(), "cpu")
    plan = make_plan(model, rules, hardware=machine())
    assert len(rows(plan, "experts.torch")) == 58
    assert 1.3e12 < plan.parts["ram"]["weights"] < 1.35e12
    assert plan.problems.keys() == {BudgetError}


@pytest.mark.parametrize("family", ["mixtral", "deepseek_v3"])
def test_written_rules_make_the_same_plan_again(family):
    model = meta_model(family)
    hardware = machine(gpus=2)
    first = plan_of(
        model,
        [
            rule({"class": "keep", "kwargs": {"device": "cuda:1"}}, name=r"model\.layers\.\d+", layers="1-"),
            rule({"class": "experts.torch", "kwargs": {"device": "cpu"}}, name=r".*\.experts", layers="2"),
            rule({"class": "attention.torch"}, name=r".*self_attn"),
            rule({"class": "linear.torch", "kwargs": {"dtype": "float32"}}, name="lm_head"),
            rule({"class": "linear.torch"}, **{"class": "Linear"}),
        ],
        hardware=hardware,
        device="cuda:0",
    )
    first.check()
    again = make_plan(model, parse_text(to_rules(first), "written"), hardware=hardware, device="cuda:0")
    again.check()

    def outcome(plan):
        return {(r.path, r.operator, r.device, r.tier, r.bytes, r.format) for r in plan.rows}

    assert outcome(again) == outcome(first)


def test_json_is_plain_data():
    plan = plan_of(meta_model("llama"), [rule({"class": "linear.torch"}, name="lm_head")])
    data = json.loads(json.dumps(plan.to_json()))
    assert data["tiers"]["ram"]["total"] == plan.totals["ram"]
    assert {"path", "rule", "operator", "format", "tier", "device", "bytes", "kernel", "notes"} <= set(data["rows"][0])
