"""Streaming by itself: as few kinds of modules as fit, and never where somebody wrote the rules."""

import pytest

import ktitan
from ktitan.api import plan_model
from ktitan.errors import BudgetError
from ktitan.tiers import Budget

from support.operator_rig import fresh_seed
from support.packed_models import write_packed

EXPERTS, LINEAR, EMBEDDING = "experts.streamed", "linear.streamed", "embedding.streamed"


@pytest.fixture(autouse=True)
def one_row_at_a_time(monkeypatch):
    """Buffers for many rows are larger than the tables of these models."""
    monkeypatch.setattr("ktitan.tiers.pools.ROWS_AT_ONCE", 1)


@pytest.fixture(scope="module", params=["qwen3_moe", "deepseek_v3", "llama_tied"])
def path(request, tmp_path_factory):
    file = tmp_path_factory.mktemp("fit") / "m.gguf"
    write_packed(file, request.param, "q4_k", fresh_seed())
    return file


def plan_in(path, size, rules="auto"):
    return plan_model(path, rules, device="cpu", context=32, budget=Budget(ram_bytes=size))


def streamed(plan):
    return {row.operator for row in plan.rows if row.operator.endswith(".streamed")}


def least(plan):
    """RAM below which this plan's streams cannot work."""
    return plan.totals["ram"] - plan.cache_bytes + plan.cache.least_bytes


@pytest.mark.parametrize("rules", ["auto", "family"])
def test_experts_go_first_then_linears_then_embeddings(path, rules):
    held = plan_in(path, 1 << 30)
    rules = held.origin.split()[1].removesuffix(".yaml") if rules == "family" else rules
    assert not streamed(held) and held.cache is None
    steps = []
    size = held.totals["ram"]
    while True:
        assert not plan_in(path, size, rules).problems
        found = plan_in(path, size - 1, rules)
        steps.append(streamed(found))
        (note,) = [note for note in found.notes if "are streamed" in note]
        assert "routed experts" in note or EXPERTS not in steps[-1]
        assert "modules streamed" in found.origin
        if found.problems:
            break
        size = least(found)
    with pytest.raises(BudgetError, match="need a cache of at least"):
        found.check()
    assert steps[-1] == steps[-2]
    kinds = [one for one in (EXPERTS, LINEAR, EMBEDDING) if one in steps[-1]]
    assert [set(kinds[: number + 1]) for number in range(len(kinds))] == steps[:-1] or steps[0] == {LINEAR}
    assert EMBEDDING in steps[-1]


def test_a_tied_head_is_streamed_with_its_embedding(tmp_path):
    write_packed(tmp_path / "m.gguf", "llama_tied", "q4_k", fresh_seed())
    first = plan_in(tmp_path / "m.gguf", plan_in(tmp_path / "m.gguf", 1 << 30).totals["ram"] - 1)
    operators = {row.path: row.operator for row in first.rows}
    assert (operators["lm_head"], operators["model.embed_tokens"]) == ("linear.cpu", "embedding.cpu")
    second = plan_in(tmp_path / "m.gguf", least(first) - 1)
    operators = {row.path: row.operator for row in second.rows}
    assert (operators["lm_head"], operators["model.embed_tokens"]) == (LINEAR, EMBEDDING)


def test_dense_weights_that_a_rule_wants_stay(tmp_path):
    write_packed(tmp_path / "m.gguf", "deepseek_v3", "q4_k", fresh_seed())
    plan = plan_in(tmp_path / "m.gguf", 1)
    assert {row.operator for row in plan.rows if row.path.endswith("kv_b_proj")} == {"linear.torch"}


def test_rules_that_somebody_wrote_are_followed(path):
    written = {"version": 1, "include": ["auto.yaml"], "rules": []}
    plan = plan_in(path, plan_in(path, 1 << 30, written).totals["ram"] - 1, written)
    assert not streamed(plan) and set(plan.problems) == {BudgetError}


def test_without_the_native_library_the_reason_is_told(path, monkeypatch):
    monkeypatch.setattr("ktitan.operators.streamed.native_reason", lambda: "not built: no C++ compiler")
    plan = plan_in(path, plan_in(path, 1 << 30).totals["ram"] - 1)
    assert not streamed(plan)
    assert any("streaming needs the native library, which is not built" in note for note in plan.notes)
    with pytest.raises(BudgetError, match="nothing can be streamed to make it fit: streaming needs the native library"):
        plan.check()


def test_a_model_in_memory_is_not_streamed():
    from support.tiny_models import tiny_model

    with pytest.raises(BudgetError):
        ktitan.optimize_and_load(tiny_model("llama", 1), "llama", budget="ram=1KiB", device="cpu")
