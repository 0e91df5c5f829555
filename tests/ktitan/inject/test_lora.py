"""LoRA adapters on injected models: the numbers of the merged model, whatever operator stands at the path."""

import copy
import pickle
from importlib.util import find_spec

import pytest
import torch

import ktitan
from ktitan.errors import UnsupportedError, WeightError
from ktitan.registry import operators

from support.adapters import by_root, merged, random_tensors, sizes_of, write_adapter
from support.packed_models import write_packed
from support.tiny_models import on_meta, random_ids, save_tiny, tiny_model

# Logits reach 10, and W x + B (A x) rounds otherwise than (W + B A) x.
CLOSE = 1e-4

needs_peft = pytest.mark.skipif(find_spec("peft") is None, reason="peft is not installed")


def logits(model, ids):
    with torch.no_grad():
        return model(ids).logits


def largest_difference(model, twin, ids):
    return float((logits(model, ids) - logits(twin, ids)).abs().max())


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lora") / "llama"
    return folder, save_tiny("llama", folder, seed=3)


@pytest.fixture
def adapter(llama, tmp_path):
    """An adapter of all kinds of linears of the llama, and the model merged with it."""
    _, stock = llama
    kinds = ["q_proj", "down_proj", "lm_head"]
    tensors = random_tensors(sizes_of(stock, *kinds), seed=5)
    return write_adapter(tmp_path / "adapter", tensors, target_modules=kinds), merged(stock, tensors, 10 / 4)


def inject(folder, lora, rules="auto", **options):
    return ktitan.optimize_and_load(on_meta(folder), rules, weights=folder, device="cpu", lora=lora, **options)


@pytest.mark.parametrize("rules", ["auto", {"version": 1, "rules": []}], ids=["linear.torch", "kept"])
def test_adapted_models_compute_what_merged_ones_do_and_undo_takes_it_back(llama, adapter, rules):
    folder, stock = llama
    ids = random_ids(2, 13, seed=1)
    model = inject(folder, adapter[0], rules)
    assert largest_difference(model, adapter[1], ids) < CLOSE
    assert largest_difference(model, stock, ids) > 0.1
    row = next(row for row in model.ktitan.plan.rows if row.path == "model.layers.1.self_attn.q_proj")
    assert "LoRA of rank 4" in row.notes
    assert row.bytes == 48 * 48 * 4 + 2 * 4 * 48 * 4
    assert any("7 modules, made for a/base" in note for note in model.ktitan.plan.notes)
    assert torch.equal(logits(model.ktitan.undo(), ids), logits(stock, ids))


def test_generation_and_copies_are_adapted_too(llama, adapter):
    model, prompt = inject(llama[0], adapter[0]), random_ids(1, 5, seed=2)
    settings = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    wanted = adapter[1].generate(prompt, **settings)
    for one in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(one.generate(prompt, **settings), wanted)


def test_the_pairs_are_counted_in_what_is_held(llama, adapter):
    plain, adapted = inject(llama[0], None), inject(llama[0], adapter[0])
    pairs = sum(4 * 4 * (inputs + outputs) for inputs, outputs in sizes_of(llama[1], "q_proj", "down_proj").values())
    pairs += 4 * 4 * sum(sizes_of(llama[1], "lm_head")["lm_head"])
    held = [model.ktitan.stats()["resident_bytes"]["ram"] for model in (plain, adapted)]
    assert held[1] - held[0] == pairs
    planned = [model.ktitan.plan.parts["ram"]["weights"] for model in (plain, adapted)]
    assert planned[1] - planned[0] == pairs


def test_ranks_and_alphas_by_pattern_with_root_scaling(llama, tmp_path):
    folder, stock = llama
    sizes = sizes_of(stock, "q_proj", "v_proj")
    sizes["model.layers.1.self_attn.v_proj"] += (6,)
    tensors = random_tensors(sizes, seed=6)
    patterns = {"rank_pattern": {r"layers\.1\.self_attn\.v_proj": 6}, "alpha_pattern": {"q_proj": 3}}
    lora = write_adapter(tmp_path, tensors, use_rslora=True, fan_in_fan_out=True, lora_dropout=0.1, **patterns)

    def scaling(path, rank):
        return by_root(3 if path.endswith("q_proj") else 10)(path, rank)

    assert largest_difference(inject(folder, lora), merged(stock, tensors, scaling), random_ids(2, 9)) < CLOSE


def test_half_precision_rounds_once(llama, tmp_path):
    """The pair is computed in float32 beside a bfloat16 module, as PEFT does."""
    folder, stock = llama
    tensors = random_tensors({"lm_head": (48, 131)}, seed=7)
    model = ktitan.optimize_and_load(
        on_meta(folder, torch.bfloat16), "auto", weights=folder, device="cpu", lora=write_adapter(tmp_path, tensors)
    )
    hidden = torch.randn(3, 48).to(torch.bfloat16)
    plain = torch.nn.functional.linear(hidden, stock.lm_head.weight.to(torch.bfloat16))
    change = hidden.float() @ tensors["base_model.model.lm_head.lora_A.weight"].T
    change = change @ tensors["base_model.model.lm_head.lora_B.weight"].T
    expected = (plain.float() + 2.5 * change).to(torch.bfloat16)
    assert torch.equal(model.lm_head(hidden), expected)


def test_attention_does_not_absorb_an_adapted_projection(tmp_path):
    stock = save_tiny("deepseek_v3", tmp_path / "model", seed=4)
    tensors = random_tensors(sizes_of(stock, "kv_b_proj", "q_b_proj", "shared_experts.up_proj"), seed=8)
    lora = write_adapter(tmp_path / "adapter", tensors)
    rules = [{"match": {"name": r".*\.self_attn"}, "replace": {"class": "attention.torch", "kwargs": {"absorb": True}}}]
    model, twin = inject(tmp_path / "model", lora, {"version": 1, "rules": rules}), merged(stock, tensors, 10 / 4)
    prompt = random_ids(1, 7, seed=3)
    assert largest_difference(model, twin, prompt) < CLOSE
    settings = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(model.generate(prompt, **settings), twin.generate(prompt, **settings))


def test_packed_gguf_weights_take_an_adapter_of_the_original(tmp_path):
    """q and k rows are stored in another order in a GGUF; an adapter that was trained on the original still fits."""
    path = tmp_path / "model.gguf"
    stock = write_packed(path, "llama", "q4_k", seed=9)
    tensors = random_tensors(sizes_of(stock, "q_proj", "k_proj", "up_proj"), seed=10)
    lora = write_adapter(tmp_path / "adapter", tensors)
    kwargs = {"activations": "float32"}
    rules = {
        "version": 1,
        "rules": [{"match": {"class": "Linear"}, "replace": {"class": "linear.cpu", "kwargs": kwargs}}],
    }
    model, _ = ktitan.load(path, rules=rules, device="cpu", lora=lora)
    assert {row.operator for row in model.ktitan.plan.rows if row.path.endswith("k_proj")} == {"linear.cpu"}
    twin = merged(stock, tensors, 10 / 4)
    for path, (inputs, _) in sizes_of(stock, "q_proj", "k_proj", "up_proj").items():
        x = torch.randn(3, inputs, generator=torch.Generator().manual_seed(11))
        with torch.no_grad():
            found, expected, plain = (one.get_submodule(path)(x) for one in (model, twin, stock))
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max())), path
        assert not torch.allclose(plain, expected, rtol=0.1), path


def test_phases_share_an_adapter(llama, adapter):
    rules = [
        {
            "match": {"name": r".*\.(q_proj|down_proj)"},
            "replace": {"class": "linear.torch", "prefill": {"class": "linear.torch", "kwargs": {"dtype": "float32"}}},
        }
    ]
    model = inject(llama[0], adapter[0], {"version": 1, "rules": rules})
    assert largest_difference(model, adapter[1], random_ids(1, 12)) < CLOSE
    assert largest_difference(model, adapter[1], random_ids(2, 1)) < CLOSE


def test_a_model_that_is_its_own_source_is_adapted(llama, adapter):
    model = tiny_model("llama", seed=3)
    ktitan.optimize_and_load(model, "auto", device="cpu", lora=adapter[0], keep_original=True)
    ids = random_ids(1, 12)
    assert largest_difference(model, adapter[1], ids) < CLOSE
    assert torch.equal(logits(model.ktitan.undo(), ids), logits(llama[1], ids))


def test_a_file_that_ends_early_leaves_the_model_as_it_was(llama, adapter, monkeypatch):
    from ktitan.weights.adapter import Adapter

    model, calls = tiny_model("llama", seed=3), []

    def fail(self, pair, device):
        calls.append(pair.path)
        if len(calls) > 2:
            raise OSError("the drive is gone")
        return torch.zeros(pair.a.shape), torch.zeros(pair.b.shape)

    monkeypatch.setattr(Adapter, "read", fail)
    with pytest.raises(OSError, match="gone"):
        ktitan.optimize_and_load(model, "auto", device="cpu", lora=adapter[0])
    assert not any(module._forward_hooks for module in model.modules())
    assert torch.equal(logits(model, random_ids(1, 5)), logits(llama[1], random_ids(1, 5)))


def test_all_that_does_not_fit_is_said_at_once(tmp_path):
    stock = save_tiny("mixtral", tmp_path / "model", seed=2)
    sizes = {
        "model.layers.0.self_attn.q_proj": (48, 47),
        "model.layers.1.self_attn.q_proj": (48, 47),
        "model.layers.0.self_attn.query": (48, 48),
        "model.layers.0.mlp.gate": (48, 5),
        "model.layers.0.mlp.experts": (48, 160),
        "model.embed_tokens": (131, 48),
    }
    lora = write_adapter(tmp_path / "adapter", random_tensors(sizes), use_dora=True)
    model = on_meta(tmp_path / "model")
    with pytest.raises(WeightError) as caught:
        ktitan.optimize_and_load(model, "auto", weights=tmp_path / "model", device="cpu", lora=lora)
    found = {fault.where: fault.message for fault in caught.value.faults}
    assert found["model.layers.0.self_attn.q_proj"].startswith(
        "the adapter is for 48 inputs and 47 outputs, the module"
    )
    assert found["model.layers.0.self_attn.q_proj"].endswith("(and 1 more like it)")
    assert "which the model lacks" in found["model.layers.0.self_attn.query"]
    assert "Router is no linear module" in found["model.layers.0.mlp.gate"]
    assert "MixtralExperts is no linear module" in found["model.layers.0.mlp.experts"]
    assert "Embedding is no linear module" in found["model.embed_tokens"]
    assert "DoRA" in found[str(lora / "adapter_config.json")]
    assert len(found) == 6
    assert all(fault.remedy for fault in caught.value.faults)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert isinstance(stock, type(model))


def test_a_module_inside_a_fused_operator_is_refused(llama, tmp_path):
    """An operator that takes a whole subtree over never calls the linears in it."""
    rules = {"version": 1, "rules": [{"match": {"name": r".*\.mlp"}, "replace": {"class": "mlp.whole"}}]}

    @ktitan.register_operator("mlp.whole")
    class Whole(ktitan.Operator):
        @classmethod
        def supports(cls, context, config):
            return None

    try:
        lora = write_adapter(tmp_path, random_tensors(sizes_of(llama[1], "up_proj")))
        with pytest.raises(WeightError, match=r"mlp\.whole computes model\.layers\.0\.mlp as a whole .and 2 more"):
            inject(llama[0], lora, rules)
    finally:
        operators.remove("mlp.whole")


@needs_peft
def test_adapters_that_peft_writes_give_pefts_numbers(llama, tmp_path):
    from peft import LoraConfig, get_peft_model

    model, ids = tiny_model("llama", seed=3), random_ids(2, 13)
    settings = {"rank_pattern": {"v_proj": 6}, "alpha_pattern": {"o_proj|down_proj": 3}, "use_rslora": True}
    peft = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], **settings)).eval()
    with torch.no_grad():
        for name, parameter in peft.named_parameters():
            if "lora_" in name:
                parameter.normal_(0, 0.3)
    peft.save_pretrained(tmp_path)
    assert largest_difference(inject(llama[0], tmp_path), peft, ids) < 1e-6


@needs_peft
def test_peft_on_an_injected_model_works_or_says_why(llama, adapter):
    from peft import PeftModel

    ids = random_ids(2, 13)
    rules = {"version": 1, "rules": [{"match": {"name": r".*\.self_attn"}, "replace": {"class": "attention.torch"}}]}
    model = inject(llama[0], None, rules)
    wrapped = PeftModel.from_pretrained(model, adapter[0])
    assert largest_difference(wrapped, adapter[1], ids) < CLOSE
    with pytest.raises(UnsupportedError, match="have been changed since injection: this one is now a peft"):
        model.ktitan.undo()
    assert largest_difference(wrapped, adapter[1], ids) < CLOSE
    wrapped.unload()
    assert torch.equal(logits(model.ktitan.undo(), ids), logits(llama[1], ids))
    whole = inject(llama[0], None)
    before = logits(whole, ids)
    with pytest.raises(ValueError, match=r"TorchLinear.* is not supported"):
        PeftModel.from_pretrained(whole, adapter[0])
    assert torch.equal(logits(whole, ids), before)


@needs_peft
def test_injection_into_a_peft_model_keeps_its_adapter(llama, adapter):
    from peft import PeftModel

    ids = random_ids(2, 13)
    wrapped = PeftModel.from_pretrained(tiny_model("llama", seed=3), adapter[0])
    ktitan.optimize_and_load(wrapped, "auto", device="cpu")
    assert largest_difference(wrapped, adapter[1], ids) < CLOSE
