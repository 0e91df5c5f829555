"""Rule by rule: what a KTransformers rule is here, and what is said about it."""

import textwrap

import pytest

from ktitan.rules import parse_text

LINEAR = "ktransformers.operators.linear.KTransformersLinear"
EXPERTS = "ktransformers.operators.experts.KTransformersExperts"
MODEL = "ktransformers.operators.models.KDeepseekV2Model"


def one(replace, match="name: ^a$", more="", prefill=True):
    """The first rule of a file with this one, and its notes without those on the whole file."""
    on = f"- match: {{name: ^model$}}\n  replace: {{class: {MODEL}}}\n" if prefill else ""
    rules = parse_text(f"- match: {{{match}}}\n  replace: {replace}\n{more}{on}", "kt.yaml")
    assert rules.faults == (), rules.faults
    return rules.rules[0], [str(note) for note in rules.notes if ":" in str(note.places[0]) and note.places[0].line < 3]


@pytest.mark.parametrize(
    ("op", "operators", "said"),
    [
        ("KLinearTorch", ("linear.torch",), ""),
        ("KLinearCPUInfer", ("linear.cpu", "linear.torch"), ""),
        ("KLinearMarlin", ("linear.torch",), "4 bits"),
        ("VLinearMarlin", ("linear.torch",), "4 bits"),
        ("KLinearFP8", ("linear.torch",), "8-bit floats"),
        ("KLinearQ8", ("linear.torch",), "8 bits"),
        ("KLinearIPEXLLM", ("linear.torch",), "Intel"),
    ],
)
def test_linear_layers(op, operators, said):
    rule, notes = one(f"{{class: {LINEAR}, kwargs: {{generate_op: {op}, prefill_op: null, generate_device: cpu}}}}")
    assert (rule.replace.operators, rule.replace.placement, rule.prefill) == (operators, {"device": "cpu"}, None)
    assert rule.optional and rule.recursive
    assert len(notes) == bool(said) and all(said in note and note.startswith("kt.yaml:2: ") for note in notes)


@pytest.mark.parametrize(
    ("op", "operators"),
    [
        ("KExpertsCPU", ("experts.cpu", "experts.torch")),
        ("KExpertsTorch", ("experts.torch",)),
        ("KExpertsMarlin", ("experts.torch",)),
    ],
)
def test_experts(op, operators):
    rule, notes = one(f"{{class: {EXPERTS}, kwargs: {{generate_op: {op}, prefill_op: 'None'}}}}")
    assert (rule.replace.operators, rule.replace.placement) == (operators, {"device": "cpu"})
    assert len(notes) == (op == "KExpertsMarlin")


@pytest.mark.parametrize(
    ("path", "operator"),
    [
        ("attention.KDeepseekV2Attention", "attention.torch"),
        ("balance_serve_attention.flashinfer_attn", "attention.torch"),
        ("layernorm.RMSNorm", "norm.torch"),
        ("layernorm.KQwen3MoeRMSNorm", "norm.torch"),
        ("RoPE.YarnRotaryEmbeddingV3", "keep"),
        ("gate.KMoEGate", "keep"),
        ("mlp.kDeepseekV3MLP", "keep"),
        ("experts.KDeepseekV3MoEV2", "keep"),
        ("layer_wise_prefill.KQwen2MoeModel", "keep"),
    ],
)
def test_other_operators(path, operator):
    rule, notes = one(f"{{class: ktransformers.operators.{path}, kwargs: {{generate_device: cuda:3}}}}")
    assert (rule.replace.operators, rule.replace.placement) == ((operator,), {"device": "cuda:3"})
    assert bool(notes) == (operator == "keep")


@pytest.mark.parametrize("replace", ["{class: default}", "{}", "{kwargs: null}", "{class: default, kwargs: {}}"])
def test_default_keeps_the_module(replace):
    rule, notes = one(replace)
    assert (rule.replace.operator, rule.replace.placement, notes) == ("keep", {}, [])


def test_an_operator_without_kwargs_takes_those_of_its_class():
    rule, _ = one(f"{{class: {LINEAR}}}")
    assert (rule.replace.operators, rule.replace.placement) == (("linear.torch",), {"device": "cuda"})
    rule, _ = one(f"{{class: {EXPERTS}}}")
    assert rule.replace.operators == ("experts.cpu", "experts.torch")
    assert (rule.prefill.operators, rule.prefill.placement) == (("experts.torch",), {"device": "cuda"})


BOTH = f"{{class: {EXPERTS}, kwargs: {{prefill_device: cuda:1, prefill_op: KExpertsMarlin}}}}"


@pytest.mark.parametrize(
    ("threshold", "kept"), [("30000", True), ("", True), ("0", False), ("null", False), (None, False)]
)
def test_operators_for_prompts_are_kept_where_layerwise_prefill_is_on(threshold, kept):
    kwargs = f", kwargs: {{per_layer_prefill_intput_threshold: {threshold}}}" if threshold else ""
    model = f"- match: {{name: ^model$}}\n  replace: {{class: {MODEL}{kwargs}}}\n" if threshold is not None else ""
    rule, notes = one(BOTH, more=model, prefill=False)
    if kept:
        assert (rule.prefill.operators, rule.prefill.placement) == (("experts.torch",), {"device": "cuda:1"})
        assert any("stay loaded in all layers" in note for note in notes)
    else:
        assert rule.prefill is None
        why = "which line 4 turns off" if threshold is not None else "which no rule turns on"
        assert any(why in note for note in notes)


def test_one_operator_for_both_phases_has_no_prefill_part():
    both = "generate_device: cuda, prefill_device: cuda, generate_op: KLinearMarlin, prefill_op: KLinearTorch"
    assert one(f"{{class: {LINEAR}, kwargs: {{{both}}}}}")[0].prefill is None
    rule, _ = one(f"{{class: {LINEAR}, kwargs: {{generate_op: null, prefill_op: KLinearCPUInfer}}}}")
    assert (rule.replace.operators, rule.prefill) == (("linear.cpu", "linear.torch"), None)
    _, notes = one("{class: default, kwargs: {generate_device: cpu, prefill_device: cuda}}")
    assert "only linear layers and experts" in notes[0]


@pytest.mark.parametrize(
    ("cls", "stock"),
    [
        ("torch.nn.Linear", "torch.nn.Linear"),
        ("my.models.Block", "my.models.Block"),
        ("transformers.models.mixtral.modeling_mixtral.MixtralRMSNorm", "MixtralRMSNorm"),
        ("ktransformers.models.modeling_deepseek_v3.DeepseekV3MoE", "DeepseekV3MoE"),
        ("ktransformers.models.modeling_deepseek_v3.MoEGate", "DeepseekV3TopkRouter"),
        ("ktransformers.models.modeling_deepseek.MoEGate", "DeepseekV2TopkRouter"),
        ("ktransformers.models.modeling_deepseek.DeepseekV2MoE", "DeepseekV2Moe"),
        ("ktransformers.models.modeling_deepseek.DeepseekV2YarnRotaryEmbedding", "DeepseekV2RotaryEmbedding"),
        ("ktransformers.models.modeling_deepseek_v3.DeepseekV3FlashAttention2", "DeepseekV3Attention"),
        ("ktransformers.models.modeling_llama.LlamaDynamicNTKScalingRotaryEmbedding", "LlamaRotaryEmbedding"),
        ("ktransformers.models.modeling_mixtral.MixtralSparseMoeBlock", "MixtralSparseMoeBlock"),
    ],
)
def test_classes(cls, stock):
    rule, notes = one("{class: default}", f"class: {cls}")
    assert rule.match.cls == stock and rule.match.name is None
    assert bool(notes) == (cls.rpartition(".")[2] != stock.rpartition(".")[2])


def test_names_and_classes_of_older_models():
    match = r"name: '^model\.layers\.([0-7])\.block_sparse_moe\.experts$', class: torch.nn.ModuleList"
    rule, notes = one(f"{{class: {EXPERTS}, kwargs: {{prefill_op: null}}}}", match)
    assert (rule.match.name.pattern, str(rule.match.layers)) == (r"model\.layers\.[0-9]+\.mlp\.experts", "0-7")
    assert rule.match.cls is None
    said = sorted(note.partition(": ")[2].split()[0] for note in notes)
    assert said == ["block_sparse_moe", "class"]
    rule, _ = one(f"{{class: {EXPERTS}}}", "class: torch.nn.ModuleList")  # the only condition stays
    assert rule.match.cls == "torch.nn.ModuleList"


@pytest.mark.parametrize(
    ("device", "placement", "said"),
    [
        ("cpu", {"device": "cpu"}, ""),
        ("cpu:0", {"device": "cpu"}, ""),
        ("cuda", {"device": "cuda"}, ""),
        ("cuda:12", {"device": "cuda:12"}, ""),
        ("null", {}, ""),
        ("xpu", {}, "no device 'xpu'"),
        ("npu:3", {}, "no device 'npu:3'"),
    ],
)
def test_devices(device, placement, said):
    rule, notes = one(f"{{class: default, kwargs: {{generate_device: {device}}}}}")
    assert rule.replace.placement == placement
    assert len(notes) == bool(said) and all(said in note for note in notes)


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ("out_device: cuda", "out_device is left out"),
        ("backend: llamafile", ""),
        ("backend: AMXBF16", "backend 'AMXBF16' has no counterpart"),
        ("absorb_for_prefill: False", ""),
        ("absorb_for_prefill: True", ""),
        ("chunck_size: 1000", "chunck_size is left out"),
        ("group_size: 64", "nothing is requantized"),
        ("dump_enable: True", "nothing is dumped"),
        ("genarate_device: cuda", "'genarate_device' is left out"),
    ],
)
def test_kwargs(kwargs, said):
    rule, notes = one(f"{{class: ktransformers.operators.attention.KDeepseekV2Attention, kwargs: {{{kwargs}}}}}")
    assert rule.replace.kwargs == ({"absorb": True} if kwargs == "absorb_for_prefill: True" else {})
    assert len(notes) == bool(said) and all(said in note for note in notes)


def test_a_transfer_map_moves_whole_layers():
    text = textwrap.dedent(
        f"""
        - match: {{name: ^model$}}
          replace:
            class: {MODEL}
            kwargs:
              per_layer_prefill_intput_threshold: 0
              transfer_map:
                20: "cuda:1"
                8: cpu
        """
    )
    rules = parse_text(text, "kt.yaml")
    _, first, second, last = rules.rules
    assert [str(rule.match) for rule in (first, second)] == [
        r"name model\.layers\.[0-9]+, layers 8-19",
        r"name model\.layers\.[0-9]+, layers 20-",
    ]
    assert [rule.replace.placement["device"] for rule in (first, second, last)] == ["cpu", "cuda:1", "cuda:0"]
    assert last.match.name.pattern == ".*"


@pytest.mark.parametrize(
    ("devices", "added"),
    [(("cuda", "cuda:0"), False), (("cpu",), False), (("cuda", "cpu"), True), (("cuda:1", "cuda:1"), True)],
)
def test_modules_without_a_rule_get_the_default_device(devices, added):
    text = "".join(
        f"- match: {{name: ^m{number}$}}\n  replace: {{class: default, kwargs: {{generate_device: {device}}}}}\n"
        for number, device in enumerate(devices)
    )
    rules = parse_text(text)
    assert (len(rules.rules) > len(devices)) == added
    assert any("modules without a rule compute on cuda:0" in str(note) for note in rules.notes) == added


def test_leaves_on_another_device_need_no_default():
    rules = parse_text(f"- match: {{name: a}}\n  replace: {{class: {EXPERTS}}}\n- match: {{name: b}}\n"
                       f"  replace: {{class: {LINEAR}}}\n")  # fmt: skip
    assert len(rules.rules) == 2


def test_several_gpus_without_a_transfer_map_are_remarked_on():
    text = "- match: {name: a}\n  replace: {kwargs: {generate_device: cuda:0}}\n"
    rules = parse_text(text + text.replace("cuda:0", "cuda:1"))
    assert any("several GPUs but no transfer_map" in str(note) for note in rules.notes)
    assert not any("several GPUs" in str(note) for note in parse_text(text + text.replace("cuda:0", "cuda")).notes)


def test_equal_remarks_share_a_line():
    text = f"- match: {{name: a}}\n  replace:\n    class: {LINEAR}\n"
    notes = [str(note) for note in parse_text(text * 3, "kt.yaml").notes]
    assert any(note.startswith("kt.yaml:3, 6, 9: KLinearMarlin") for note in notes)
