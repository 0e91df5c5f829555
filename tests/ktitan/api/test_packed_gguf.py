"""Packed GGUF models of every type and family, loaded whole, against stock transformers on dequantised weights."""

import pytest
import torch

import ktitan
from ktitan.native.library import set_threads, threads

from support.gguf_blocks import PACKED
from support.operator_rig import fresh_seed
from support.packed_models import CONFIGS, write_packed

FLOAT = {"only_packed": True, "activations": "float32"}
EXACT = {
    "version": 1,
    "rules": [
        {"match": {"name": r".*\.kv_b_proj"}, "replace": {"class": "linear.torch"}, "optional": True},
        {"match": {"class": "Linear"}, "replace": {"class": ["linear.cpu", "linear.torch"], "kwargs": FLOAT}},
        {"match": {"name": r".*\.experts"}, "replace": {"class": "experts.cpu", "kwargs": FLOAT}, "optional": True},
        {"match": {"class": "Embedding"}, "replace": {"class": "embedding.cpu", "kwargs": FLOAT}},
    ],
}


def check_against(stock, model, tokens=40):
    """The measures of the issue: KL over all positions, and the largest difference on 99 % of them."""
    ids = torch.randint(3, 64, (2, tokens))
    with torch.no_grad():
        expected, found = stock(ids).logits.flatten(0, 1), model(ids).logits.flatten(0, 1)
    reference = expected.double().log_softmax(-1)
    kl = (reference.exp() * (reference - found.double().log_softmax(-1))).sum(-1).mean()
    worst = (found - expected).abs().amax(-1)
    assert expected.std() > 0.05
    assert kl <= 1e-5
    assert worst.quantile(0.99) <= 1e-3


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_every_type_with_float_activations(family, kind, tmp_path):
    stock = write_packed(tmp_path / "m.gguf", family, kind, fresh_seed())
    model, _ = ktitan.load(tmp_path / "m.gguf", rules=EXACT, device="cpu")
    check_against(stock, model)


@pytest.mark.parametrize("family", sorted(set(CONFIGS) - {"llama", "qwen3_moe"}))
def test_every_family_with_float_activations(family, tmp_path):
    stock = write_packed(tmp_path / "m.gguf", family, "q4_k", fresh_seed())
    model, _ = ktitan.load(tmp_path / "m.gguf", rules=EXACT, device="cpu")
    check_against(stock, model)


@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_every_family_by_default_stays_packed_and_near(family, tmp_path):
    stock = write_packed(tmp_path / "m.gguf", family, "q6_k", fresh_seed())
    model, _ = ktitan.load(tmp_path / "m.gguf", device="cpu")
    rows = {row.path: row for row in model.ktitan.plan.rows}
    assert model.dtype == torch.float32
    assert rows["model.layers.1.self_attn.o_proj"].operator == "linear.cpu"
    assert rows["model.layers.1.self_attn.o_proj"].format == "q6_k"
    assert rows["model.embed_tokens"].operator == "embedding.cpu"
    if any("experts" in path for path, row in rows.items() if row.module.endswith("Experts")):
        assert {row.operator for row in rows.values() if row.module.endswith("Experts")} == {"experts.cpu"}
    ids = torch.randint(3, 64, (2, 20))
    with torch.no_grad():
        expected, found = stock(ids).logits, model(ids).logits
    assert (found - expected).norm() / expected.norm() < 0.25
    generated = model.generate(ids[:1], max_new_tokens=4, do_sample=False)
    assert generated.shape[1] <= 24


def test_tied_head_and_embedding_are_one_matrix(tmp_path):
    write_packed(tmp_path / "m.gguf", "llama_tied", "q8_0", fresh_seed())
    model, _ = ktitan.load(tmp_path / "m.gguf", device="cpu")
    assert model.lm_head.matrix is model.model.embed_tokens.matrix
    rows = {row.path: row for row in model.ktitan.plan.rows}
    assert rows["lm_head"].bytes == 0 and "tied" in rows["lm_head"].notes
    assert rows["model.embed_tokens"].bytes == model.lm_head.matrix.nbytes


def test_old_files_with_a_tensor_an_expert_stay_packed(tmp_path):
    stock = write_packed(tmp_path / "m.gguf", "mixtral", "q4_0", fresh_seed(), single_experts=True)
    model, _ = ktitan.load(tmp_path / "m.gguf", rules=EXACT, device="cpu")
    check_against(stock, model)
    assert model.model.layers[0].mlp.experts.bank.up.format == "q4_0"


def test_mixed_types_and_what_stays_dense(tmp_path):
    def kind(name):
        if "q_proj" in name:
            return "q6_k"
        return None if "o_proj" in name else "q4_k"

    stock = write_packed(tmp_path / "m.gguf", "llama", kind, fresh_seed())
    model, _ = ktitan.load(tmp_path / "m.gguf", rules=EXACT, device="cpu")
    check_against(stock, model)
    rows = {row.path: row for row in model.ktitan.plan.rows}
    found = [rows[f"model.layers.0.self_attn.{name}_proj"] for name in ("q", "k", "o")]
    assert [(row.operator, row.format) for row in found] == [
        ("linear.cpu", "q6_k"),
        ("linear.cpu", "q4_k"),
        ("linear.torch", "f32"),
    ]


def test_undo_gives_the_dequantised_stock_model(tmp_path):
    stock = write_packed(tmp_path / "m.gguf", "qwen3_moe", "q5_k", fresh_seed())
    model, _ = ktitan.load(tmp_path / "m.gguf", device="cpu")
    model.ktitan.undo()
    state = model.state_dict()
    assert state.keys() == stock.state_dict().keys()
    for name, tensor in stock.state_dict().items():
        assert torch.equal(state[name], tensor), name


def test_saving_a_packed_model_is_refused_before_weights_are_written(tmp_path):
    write_packed(tmp_path / "m.gguf", "llama", "q4_k", fresh_seed())
    model, _ = ktitan.load(tmp_path / "m.gguf", device="cpu")
    with pytest.raises(ktitan.UnsupportedError, match="undo"):
        model.save_pretrained(tmp_path / "out")
    assert not list(tmp_path.rglob("*.safetensors")) and not list(tmp_path.rglob("*.bin"))


def test_memory_is_that_of_the_file(tmp_path):
    write_packed(tmp_path / "m.gguf", "mixtral", "q4_k", fresh_seed())
    plan = ktitan.api.plan_model(tmp_path / "m.gguf", device="cpu")
    packed = sum(row.bytes for row in plan.rows if row.operator.endswith(".cpu"))
    dense = sum(row.bytes for row in plan.rows if row.operator.endswith(".torch") or row.operator == "keep")
    assert dense < 40_000
    assert abs(packed + dense - (tmp_path / "m.gguf").stat().st_size) < 20_000
    assert {row.kernel.split()[1] for row in plan.rows if row.operator == "linear.cpu"} == {"q4_k"}


@pytest.mark.parametrize("family", ["qwen3", "mixtral", "deepseek_v3"])
def test_logits_have_the_same_bits_for_all_chunks_and_threads(tmp_path, family):
    write_packed(tmp_path / "m.gguf", family, "q4_k", fresh_seed())
    model, _ = ktitan.load(tmp_path / "m.gguf", device="cpu")
    ids = torch.randint(3, 64, (1, 150), generator=torch.Generator().manual_seed(fresh_seed()))
    before, runs = threads(), []
    try:
        for count, chunk in ((1, 150), (1, 7), (2, 64), (3, 149)):
            set_threads(count)
            cache = ktitan.api.new_cache(model)
            with torch.inference_mode():
                parts = [model(part, past_key_values=cache, use_cache=True).logits for part in ids.split(chunk, dim=1)]
            runs.append(torch.cat(parts, dim=1))
    finally:
        set_threads(before)
    assert all(torch.equal(run, runs[0]) for run in runs)


def without_gating(family, path, more=None):
    """A deepseek2 file that does not say how experts are scored, and the stock model that it was written from."""
    return write_packed(path, family, "q8_0", fresh_seed(), {"expert_gating_func": None, **(more or {})})


def routed_by_softmax(stock):
    """The stock V3 model with its sigmoid patched to a softmax: the same routing by another way."""
    for layer in stock.model.layers[stock.config.first_k_dense_replace :]:
        layer.mlp.gate.forward = _patched(layer.mlp.gate)
    return stock


def _patched(gate):
    stock_forward = type(gate).forward

    def forward(hidden):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.Tensor, "sigmoid", lambda scores: scores.softmax(-1))
            return stock_forward(gate, hidden)

    return forward


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3"])
def test_a_deepseek_file_that_does_not_say_how_it_routes(family, tmp_path):
    stock = without_gating(family, tmp_path / "m.gguf")
    plan = ktitan.api.plan_model(tmp_path / "m.gguf", device="cpu")
    assert any("expert_gating_func is missing; experts are chosen by softmax" in note for note in plan.notes)
    model, _ = ktitan.load(tmp_path / "m.gguf", rules=EXACT, device="cpu")
    assert any("by softmax" in note for note in model.ktitan.plan.notes)
    check_against(routed_by_softmax(stock) if family == "deepseek_v3" else stock, model)
    if family == "deepseek_v3":
        assert not {note for note in _plan_of_a_stated_file(tmp_path).notes if "softmax" in note}


def _plan_of_a_stated_file(folder):
    write_packed(folder / "stated.gguf", "deepseek_v3", "q8_0", fresh_seed())
    return ktitan.api.plan_model(folder / "stated.gguf", device="cpu")


def test_normalised_softmax_routing_without_biases(tmp_path):
    """DeepSeek V2's layout with `expert_weights_norm`: V3's class with softmax scores and no bias."""
    more = {"expert_weights_norm": True}
    stock = write_packed(tmp_path / "m.gguf", "deepseek_v2", "q8_0", fresh_seed(), more)
    for layer in stock.model.layers[1:]:
        gate = layer.mlp.gate
        plain = gate.forward

        def normalised(hidden, plain=plain, scale=stock.config.routed_scaling_factor):
            logits, weights, indices = plain(hidden)
            return logits, scale * weights / weights.sum(-1, keepdim=True), indices

        gate.forward = normalised
    model, _ = ktitan.load(tmp_path / "m.gguf", rules=EXACT, device="cpu")
    check_against(stock, model)


def test_groups_that_no_router_can_use_are_refused(tmp_path):
    write_packed(tmp_path / "m.gguf", "deepseek_v3", "q8_0", fresh_seed(), {"expert_group_count": 8})
    with pytest.raises(ktitan.FormatError, match="8 experts cannot be in 8 groups"):
        ktitan.load(tmp_path / "m.gguf", device="cpu")
