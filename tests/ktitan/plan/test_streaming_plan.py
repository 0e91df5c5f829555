"""Plans with weights on the drive: rows, budgets to the byte, homes, and what is refused."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from ktitan.api import plan_model
from ktitan.errors import BudgetError, RuleError
from ktitan.formats import find_format
from ktitan.hardware import Cpu, Hardware, Memory
from ktitan.plan import make_plan
from ktitan.rules import parse_object
from ktitan.tiers import UNLIMITED, Budget
from ktitan.weights.gguf_source import open_gguf
from ktitan.weights.live_source import LiveSource
from ktitan.weights.rows import stored_rows

from support.operator_rig import fresh_seed
from support.packed_models import CONFIGS, write_packed
from support.streaming_rules import rules
from support.tiny_models import save_tiny

MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture(scope="module")
def moe(tmp_path_factory):
    file = tmp_path_factory.mktemp("plans") / "m.gguf"
    write_packed(file, "qwen3_moe", "q4_k", fresh_seed())
    return file


@pytest.fixture(scope="module")
def stock():
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(CONFIGS["qwen3_moe"](), dtype=torch.float32)


def plan_of(model, file, given, ram=64 * GIB, budget=UNLIMITED, **options):
    hardware = Hardware(Cpu("test", frozenset(), 4, 4, 4), Memory(ram, ram, None), ())
    source = file if hasattr(file, "tensors") else open_gguf(file)
    return make_plan(model, parse_object(given, "test"), [source], hardware=hardware, budget=budget, **options)


def one_rule(replace, **match):
    return {"version": 1, "rules": [{"match": match, "replace": replace}]}


def test_rows_say_what_is_in_files_and_what_in_ram(moe, stock):
    plan = plan_of(stock, moe, rules("streamed"))
    plan.check()
    row = next(row for row in plan.rows if row.path == "model.layers.1.mlp.experts")
    assert (row.operator, row.tier, row.bytes, row.resident_bytes) == ("experts.streamed", "nvme", 6 * 3 * 36864, 0)
    assert plan.parts["nvme"]["weights"] == sum(row.bytes for row in plan.rows if row.tier == "nvme")
    assert plan.cache_bytes == plan.cache.all_bytes
    assert "streamed, cache" in plan.summary() and "in ram holds 100 %" in plan.summary()
    assert plan.to_json()["cache"]["bytes"] == plan.cache_bytes
    (folded,) = [row for row in plan.folded_rows() if row.row.operator == "experts.streamed"]
    assert folded.bytes == 2 * row.bytes


def test_the_cache_takes_what_the_budget_leaves_to_the_byte(moe, stock):
    plan = plan_of(stock, moe, rules("streamed"))
    other = plan.totals["ram"] - plan.cache_bytes
    for room, cache in ((2**40, plan.cache.all_bytes), (plan.cache.all_bytes - 1,) * 2, (plan.cache.least_bytes,) * 2):
        found = plan_of(stock, moe, rules("streamed"), budget=Budget(ram_bytes=other + room))
        assert (found.cache_bytes, found.problems) == (cache, {})
    tight = plan_of(stock, moe, rules("streamed"), budget=Budget(ram_bytes=other + plan.cache.least_bytes - 1))
    with pytest.raises(BudgetError, match="streamed weights need a cache of at least"):
        tight.check()


def test_without_a_budget_some_memory_is_left_alone(moe, stock):
    other = plan_of(stock, moe, rules("streamed"))
    other = other.totals["ram"] - other.cache_bytes
    assert plan_of(stock, moe, rules("streamed"), ram=other + 512 * MIB + 900_000).cache_bytes == 900_000
    crowded = plan_of(stock, moe, rules("streamed"), ram=other + 512 * MIB)
    assert (crowded.cache_bytes, crowded.problems) == (crowded.cache.least_bytes, {})


def test_kept_linears_and_embeddings_with_a_home_on_the_drive_are_streamed(moe, stock):
    given = one_rule({"class": "keep", "kwargs": {"home": "nvme"}}, name=r"lm_head|model\.embed_tokens")
    plan = plan_of(stock, moe, given)
    plan.check()
    found = {row.path: (row.operator, row.rule) for row in plan.rows if row.tier == "nvme"}
    where = "test rules[0]"
    assert found == {"lm_head": ("linear.streamed", where), "model.embed_tokens": ("embedding.streamed", where)}


def test_a_home_on_the_drive_is_inherited(moe, stock):
    plan = plan_of(stock, moe, one_rule({"class": "keep", "kwargs": {"home": "nvme"}}, name=r"model\.layers\.0"))
    plan.check()
    streamed = [row.path for row in plan.rows if row.tier == "nvme"]
    assert len(streamed) == 4 and all(path.startswith("model.layers.0.self_attn.") for path in streamed)
    assert any("only linear layers and embeddings are streamed" in note for note in plan.notes)


def test_homes_that_cannot_be(moe, stock):
    cases = {
        "streams its weights from files": ("experts.streamed", "ram", r".*\.experts", "use experts.cpu"),
        "cannot keep its weights in nvme": ("linear.cpu", "nvme", "lm_head", "linear.streamed"),
        "a kept Qwen3MoeRMSNorm on cpu cannot": ("keep", "nvme", r"model\.norm", "only linear layers"),
    }
    for message, (operator, home, name, remedy) in cases.items():
        plan = plan_of(stock, moe, one_rule({"class": operator, "kwargs": {"home": home}}, name=name))
        with pytest.raises(RuleError, match=message) as caught:
            plan.check()
        assert remedy in str(caught.value)


def test_a_home_that_goes_without_saying(moe, stock):
    for kwargs in ({}, {"home": "nvme"}, {"device": "cpu"}, {"tier": "nvme"}):
        plan = plan_of(stock, moe, one_rule({"class": "linear.streamed", "kwargs": kwargs}, name="lm_head"))
        plan.check()
        assert plan.decisions[0].choice.context.tier == "nvme"


def refusal(plan):
    with pytest.raises(RuleError) as caught:
        plan.check()
    return str(caught.value)


def test_what_is_refused_before_a_byte_is_read(moe, stock, monkeypatch):
    experts = one_rule({"class": "experts.streamed"}, name=r".*\.experts")
    cards = one_rule({"class": "experts.streamed", "kwargs": {"device": "cuda"}}, name=r".*\.experts")
    assert "it computes on the CPU" in refusal(plan_of(stock, moe, cards))

    live = AutoModelForCausalLM.from_config(CONFIGS["qwen3_moe"](), dtype=torch.float32)
    assert "a model in memory cannot be streamed" in refusal(plan_of(live, LiveSource(live), experts))

    monkeypatch.setattr("ktitan.operators.streamed.native_reason", lambda: "not built")
    assert "streaming needs the native library, which is not built" in refusal(plan_of(stock, moe, experts))


def test_without_weights_nothing_is_known(stock):
    hardware = Hardware(Cpu("test", frozenset(), 4, 4, 4), Memory(GIB, GIB, None), ())
    plan = make_plan(stock, parse_object(rules("streamed"), "test"), hardware=hardware)
    assert "not known without weights" in refusal(plan)


def test_both_phases_share_the_records(moe, stock):
    replace = {"class": "experts.streamed", "prefill": {"kwargs": {"activations": "float32"}}}
    once = plan_of(stock, moe, one_rule({"class": "experts.streamed"}, name=r".*\.experts"))
    twice = plan_of(stock, moe, one_rule(replace, name=r".*\.experts"))
    twice.check()
    assert (twice.cache, twice.parts) == (once.cache, once.parts)


def test_q_and_k_of_llama_files_are_stored_in_another_order(tmp_path):
    write_packed(tmp_path / "m.gguf", "llama", "q4_k", fresh_seed())
    plan = plan_model(tmp_path / "m.gguf", rules("streamed"), device="cpu")
    bindings = plan.weights.bindings
    for name, moved in (("q_proj", True), ("k_proj", True), ("v_proj", False)):
        expression = bindings[f"model.layers.0.self_attn.{name}.weight"]
        rows = stored_rows(expression, 0, expression.shape[0])
        assert (rows.order is not None) == moved and len(rows.spans) == 1
        if moved:
            assert sorted(rows.order) == list(range(rows.rows))
            (span,) = rows.spans
            with (tmp_path / "m.gguf").open("rb") as file:
                file.seek(span.offset)
                data = torch.frombuffer(bytearray(file.read(span.nbytes)), dtype=torch.uint8).view(rows.rows, -1)
            dense = torch.from_numpy(find_format("q4_k", "").dequantize(data.numpy()))
            assert torch.equal(dense[list(rows.order)], expression.dense(torch.float32))
            assert stored_rows(expression, 1, 2) is None


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_rows_of_one_tensor_are_found_without_steps_for_each(tmp_path, monkeypatch, kind):
    if kind == "gguf":
        write_packed(tmp_path / "m.gguf", "qwen3_moe", "q4_k", fresh_seed())
    else:
        save_tiny("mixtral", tmp_path)
    bindings = plan_model(tmp_path / "m.gguf" if kind == "gguf" else tmp_path, device="cpu").weights.bindings

    def found():
        result = {}
        for name, expression in bindings.items():
            if len(expression.shape) not in (2, 3):
                continue
            rows = expression.shape[-2]
            for entry in [None] if len(expression.shape) == 2 else range(expression.shape[0]):
                for first, count in ((0, rows), (0, rows // 2), (rows // 2, rows - rows // 2), (1, rows)):
                    result[name, entry, first, count] = stored_rows(expression, first, count, entry)
        return result

    quick = found()
    monkeypatch.setattr("ktitan.weights.rows._within_one", lambda *_: None)
    assert quick == found()
    assert sum(rows is not None for rows in quick.values()) > 20
