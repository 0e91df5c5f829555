"""Predictors of streamed experts: what the routers choose, without a change of any bit."""

import copy
import logging
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import nn

import ktitan
from ktitan.inject.foresee import _Foresee, foresee
from ktitan.inject.hashed import tables_of
from ktitan.inject.journal import Journal
from ktitan.inject.sights import find_sights
from ktitan.operators import CpuMoe
from ktitan.tiers.store import TierStore

from support.adapters import random_tensors, sizes_of, write_adapter
from support.operator_rig import fresh_seed
from support.streaming_rules import rules
from support.tiny_models import CONFIGS, on_meta, random_ids, save_tiny, tiny_model

_SIZES = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 256,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
}
MORE = {
    "gpt_oss": lambda: transformers.GptOssConfig(**_SIZES),
    "minimax_m2": lambda: transformers.MiniMaxM2Config(**_SIZES),
    "glm4_moe": lambda: transformers.Glm4MoeConfig(
        **_SIZES, moe_intermediate_size=20, n_routed_experts=8, n_group=2, topk_group=1, first_k_dense_replace=1
    ),
}
# Whether a dense layer comes first.
FAMILIES = {
    "mixtral": False,
    "qwen2_moe": False,
    "olmoe": False,
    "gpt_oss": False,
    "minimax_m2": False,
    "qwen3_moe": True,
    "deepseek_v2": True,
    "deepseek_v3": True,
    "glm4_moe": True,
}
STREAMED = {
    "version": 1,
    "rules": [{"match": {"name": r".*\.experts"}, "replace": {"class": "experts.streamed"}}],
}
# The same with operators for all that stands around the experts.
AROUND = {
    "version": 1,
    "rules": [
        *STREAMED["rules"],
        {"match": {"name": r".*\.mlp(\.shared_experts?)?"}, "replace": {"class": ["moe.cpu", "mlp.cpu"]}},
        {"match": {"name": r".*norm"}, "replace": {"class": "norm.cpu"}},
        {"match": {"name": r".*\.self_attn"}, "replace": {"class": "attention.cpu"}},
    ],
}


@pytest.fixture(autouse=True)
def more_families(monkeypatch):
    for name, make in MORE.items():
        monkeypatch.setitem(CONFIGS, name, make)


def router_of(layer):
    return next(one for one in layer.mlp.children() if hasattr(one, "top_k"))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer_behind_another_is_foreseen(family):
    model = tiny_model(family, fresh_seed())
    sights = find_sights(model)
    assert [sight.layer for sight in sights] == ([1, 2] if FAMILIES[family] else [0, 1, 2])
    if not FAMILIES[family]:
        assert sights.pop(0).reason == "no layer stands before it"
    for sight in sights:
        assert sight.reason == "" and sight.source == f"model.layers.{sight.layer - 1}.mlp"
        layers = model.model.layers
        norm, before = (layers[i].post_attention_layernorm for i in (sight.layer, sight.layer - 1))
        x = torch.randn(40, 48)
        with torch.no_grad():
            own, seen = norm(x), before(x)
            mlp = layers[sight.layer].mlp
            more = [mlp.e_score_correction_bias] if family == "minimax_m2" else []
            chosen = router_of(layers[sight.layer])(own, *more)[2].sort(-1).values
        most = chosen.shape[1]
        native = sight.router.predictor(sight.scale).predict(seen, most)
        for guess in (native, sight.router.choose(seen, most, sight.scale)):
            assert (guess.sort(-1).values == chosen).all(-1).float().mean() > 0.97
        wide = sight.router.predictor(sight.scale).predict(seen, sight.router.experts)
        assert (wide[:, :most] == native).all()
        assert (wide == sight.router.choose(seen, sight.router.experts, sight.scale)).float().mean() > 0.97


@pytest.fixture(scope="module", params=["qwen3_moe", "deepseek_v3", "mixtral"])
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("foresee") / "m"
    save_tiny(request.param, path, seed=fresh_seed())
    return path


def loaded(folder, cache=None, which=STREAMED, **options):
    given = {"weights": folder, "device": "cpu", "cache": cache, **options}
    return ktitan.optimize_and_load(on_meta(folder), which, **given)


def hooks_of(model):
    hooks = [hook for one in model.modules() for hook in one._forward_pre_hooks.values()]
    return [hook for hook in hooks if isinstance(hook, _Foresee)]


def say(model):
    ids = random_ids(1, 12)
    with torch.no_grad():
        return [
            model(ids).logits,
            model(ids[:, :3]).logits,
            model.generate(ids, max_new_tokens=6, min_new_tokens=6, do_sample=False),
        ]


def test_predictions_change_no_bit(folder, monkeypatch, caplog):
    seen = []
    monkeypatch.setattr(TierStore, "foresee", lambda self, predictor, hidden: seen.append(hidden.shape))
    plain = loaded(folder, "prefetch=off")
    with caplog.at_level(logging.INFO, logger="ktitan"):
        model = loaded(folder)
    stats = model.ktitan.stats()["foresight"]
    first_is_dense = plain.config.model_type != "mixtral"
    assert (stats["layers"], stats["foreseen"]) == ((2, 2) if first_is_dense else (3, 2))
    assert f"experts of 2 of {stats['layers']} layers are foreseen" in caplog.text
    banks = list(model.ktitan._store.banks.values())
    assert [bank.next is not None for bank in banks] == [True] * (len(banks) - 1) + [False]
    assert banks[0].next.struct.first_record == banks[1].first_record
    assert all(map(torch.equal, say(model), say(plain)))
    assert len(hooks_of(model)) == first_is_dense
    # Only steps of few tokens, not prompts of 12.
    assert {shape[0] for shape in seen} == ({1, 3} if first_is_dense else set())
    assert plain.ktitan.stats()["foresight"] is None and not hooks_of(plain)
    assert all(bank.next is None for bank in plain.ktitan._store.banks.values())


def test_operators_around_the_experts_are_seen_through(folder, monkeypatch):
    seen = []
    stock = loaded(folder).ktitan.stats()["foresight"]
    plain = loaded(folder, "prefetch=off", AROUND)
    monkeypatch.setattr(TierStore, "foresee", lambda self, predictor, hidden: seen.append(hidden.shape))
    model = loaded(folder, which=AROUND)
    assert isinstance(model.model.layers[1].mlp, CpuMoe)
    assert model.ktitan.stats()["foresight"] == stock
    assert all(map(torch.equal, say(model), say(plain)))
    assert {shape[0] for shape in seen} == ({1, 3} if hooks_of(model) else set())
    sights = find_sights(model)
    assert [sight.reason for sight in sights][-2:] == ["", ""]
    model.ktitan.undo()
    for ours, theirs in zip(sights, find_sights(model), strict=True):
        assert (ours.source, ours.source_experts, ours.reason) == (theirs.source, theirs.source_experts, theirs.reason)
        assert ours.router is None or (ours.router.form == theirs.router.form and torch.equal(ours.scale, theirs.scale))


def test_copies_share_predictors_and_undo_takes_them_back(folder):
    model = loaded(folder)
    said = say(model)
    twin = copy.deepcopy(model)
    assert all(map(torch.equal, say(twin), said))
    assert [one.predictor for one in hooks_of(twin)] == [one.predictor for one in hooks_of(model)]
    model.ktitan.undo()
    assert not hooks_of(model)
    assert len(say(model)) == 3


def test_layers_that_hold_their_experts_are_looked_from_but_not_foreseen(tmp_path):
    save_tiny("mixtral", tmp_path / "m", seed=fresh_seed())
    mixed = {"match": {"name": r".*\.1\.mlp\.experts"}, "replace": {"class": "experts.cpu"}}
    which = {"version": 1, "rules": [mixed, *STREAMED["rules"]]}
    model, other = loaded(tmp_path / "m", which=which), loaded(tmp_path / "m", "prefetch=off", which)
    assert all(map(torch.equal, say(model), say(other)))
    stats = model.ktitan.stats()["foresight"]
    assert (stats["layers"], stats["foreseen"]) == (2, 1) and len(hooks_of(model)) == 1
    assert stats["reasons"] == {0: "no layer stands before it"}


def test_every_matrix_streamed_and_an_adapter_leave_the_bits(tmp_path):
    save_tiny("deepseek_v3", tmp_path / "m", seed=fresh_seed())
    sizes = sizes_of(tiny_model("deepseek_v3"), "o_proj", "down_proj")
    lora = write_adapter(tmp_path / "lora", random_tensors(sizes), target_modules=["o_proj", "down_proj"])
    both = [loaded(tmp_path / "m", cache, rules("streamed"), lora=lora) for cache in (None, "prefetch=off")]
    assert all(map(torch.equal, *map(say, both)))
    assert both[0].ktitan.stats()["foresight"]["foreseen"] == 2


class Jittered(nn.Module):
    """A router that chooses otherwise than by its scores."""

    def __init__(self, router):
        super().__init__()
        self.weight, self.top_k = router.weight, router.top_k

    def forward(self, hidden):
        logits = torch.nn.functional.linear(hidden.reshape(-1, hidden.shape[-1]), self.weight)
        best = (-logits).topk(self.top_k)
        return logits, best.values.softmax(-1), best.indices


def weight_of_zero(model):
    model.model.layers[0].post_attention_layernorm.weight.data[3] = 0


def another_router(model):
    model.model.layers[1].mlp.gate = Jittered(model.model.layers[1].mlp.gate)


def another_eps(model):
    model.model.layers[1].post_attention_layernorm.variance_epsilon = 0.5


def a_hook(model):
    model.model.layers[1].mlp.gate.register_forward_hook(lambda *_: None)


def another_forward(model):
    model.model.layers[1].forward = lambda *args, **kwargs: None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (weight_of_zero, "the norm of the layer before leaves out channels"),
        (another_router, "its router chooses otherwise than by scores, corrections and groups"),
        (another_eps, "its norm has another eps"),
        (a_hook, "its router carries hooks"),
        (another_forward, "the layer's forward was replaced"),
    ],
)
def test_what_is_unclear_is_not_foreseen(change, reason):
    model = tiny_model("mixtral", fresh_seed())
    change(model)
    sight = find_sights(model)[1]
    assert sight.router is None and sight.reason.startswith(reason)


def test_softmax_with_corrections_is_refused():
    sizes = {**_SIZES, "moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 20, "moe_layer_start_index": 1}
    for name in ("num_local_experts", "num_experts_per_tok", "head_dim"):
        del sizes[name]
    torch.manual_seed(fresh_seed())
    model = transformers.Ernie4_5_MoeForCausalLM(transformers.Ernie4_5_MoeConfig(**sizes)).eval()
    for layer in model.model.layers[1:]:
        # Of the size of a softmax, so that neither it nor the corrections alone decide.
        layer.mlp.gate.moe_statics.e_score_correction_bias.data.normal_(0, 0.2)
        layer.mlp.gate.weight.data.normal_(0, 0.2)
    assert {sight.reason for sight in find_sights(model)} == {
        "its router chooses otherwise than by scores, corrections and groups"
    }
    for layer in model.model.layers[1:]:
        layer.mlp.gate.moe_statics.e_score_correction_bias.data.zero_()
    assert all(sight.router is not None for sight in find_sights(model))


def test_models_without_experts_have_no_sights():
    assert find_sights(tiny_model("llama")) == []


class Told:
    """A store with 100 records for each layer, which only notes what it is told."""

    def __init__(self, model):
        paths = [f"model.layers.{number}.mlp.experts" for number in range(len(model.model.layers))]
        self.banks = {path: SimpleNamespace(first_record=100 * i, foresee=None) for i, path in enumerate(paths)}
        self.told = []

    def foretell(self, records):
        self.told.append(records)


def test_layers_that_route_by_token_are_foretold_from_the_ids():
    sizes = {name: size for name, size in _SIZES.items() if name not in ("head_dim", "num_key_value_heads")}
    config = transformers.DeepseekV4Config(**sizes, mlp_layer_types=["hash_moe", "hash_moe", "moe"])
    torch.manual_seed(fresh_seed())
    model = transformers.DeepseekV4ForCausalLM(config).eval()
    asked = []
    for number, layer in enumerate(model.model.layers):
        layer.mlp.experts.register_forward_pre_hook(lambda _, args, at=100 * number: asked.append(args[1] + at))
        layer.mlp.gate.weight.data.normal_()
        if number < 2:
            layer.mlp.gate.tid2eid.copy_(torch.rand(131, 6).topk(2).indices)
    store, journal = Told(model), Journal(model)
    found = foresee(model, store, journal)
    assert (found.layers, found.foreseen) == (3, 2) and list(found.reasons) == [2]
    for tokens in (1, 8, 9):
        ids = random_ids(1, tokens, fresh_seed())
        asked.clear()
        with torch.no_grad():
            model(ids)
        wanted = torch.cat(asked[:2]).reshape(-1).tolist()
        if tokens < 9:
            assert store.told.pop() == list(dict.fromkeys(wanted))
        assert store.told == []
    twin = copy.deepcopy(model)
    twin(random_ids(1, 1))
    assert len(store.told) == 1
    journal.roll_back()
    model(random_ids(1, 1))
    assert len(store.told) == 1
    # A router that does something else with its table.
    model.model.layers[0].mlp.gate.forward = lambda hidden, ids: None
    model.model.layers[1].mlp.gate.tid2eid[5, 0] = 7
    assert tables_of(model) == {}
