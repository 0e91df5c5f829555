"""`keep` at the end of a list of operators: what none of them supports stays stock, with a note."""

import pytest
from test_make_plan import meta_model, plan_of, rows, rule

LINEARS = rule({"class": "linear.torch"}, **{"class": "torch.nn.Linear"})


def test_what_no_operator_supports_stays_stock_with_a_note():
    model = meta_model("mixtral")  # bfloat16
    plan = plan_of(model, [rule({"class": ["moe.cpu", "mlp.cpu", "keep"]}, name=r".*\.mlp")])
    plan.check()
    assert not plan.decisions and {row.operator for row in plan.rows} == {"keep"}
    assert {"model.layers.0.mlp.gate", "model.layers.2.mlp.experts"} <= set(rows(plan))
    (note,) = (note for note in plan.notes if note.startswith("kept stock"))
    why = "moe.cpu and mlp.cpu cannot replace MixtralSparseMoeBlock: it computes in float32, the model in bfloat16"
    assert note == f"kept stock, 3 x: {why} (first: model.layers.0.mlp)"


def test_those_that_an_operator_supports_are_replaced_and_placed_alike():
    model = meta_model("llama").float()
    kinds = {"class": ["norm.torch", "keep"], "kwargs": {"device": "cpu"}}
    plan = plan_of(model, [rule(kinds, name=r"model\.(norm|embed_tokens)"), LINEARS])
    plan.check()
    assert set(rows(plan, "norm.torch")) == {"model.norm"} and "model.embed_tokens" in rows(plan, "keep")
    assert len([note for note in plan.notes if "kept stock, 1 x" in note]) == 1


def test_rules_below_a_module_that_stays_hold_unless_an_operator_would_have_taken_all():
    model = meta_model("llama").float()
    plan = plan_of(model, [rule({"class": ["mlp.cpu", "keep"]}, name=r".*\.(mlp|self_attn)"), LINEARS])
    plan.check()
    assert len(rows(plan, "mlp.cpu")) == 3 and "model.layers.0.self_attn.q_proj" in rows(plan, "linear.torch")


@pytest.mark.parametrize(
    ("replace", "message"),
    [
        ({"class": ["linear.trch", "keep"]}, "no operator named 'linear.trch'"),
        (
            {"class": ["linear.torch", "keep"], "kwargs": {"dtpe": "float32"}},
            "linear.torch or keep has no kwarg 'dtpe'",
        ),
        ({"class": ["linear.torch", "keep"], "prefill": {"kwargs": {"device": "cpu"}}}, "kept has no phases"),
        ({"class": ["linear.torch", "mlp.cpu", "keep"]}, "cannot be alternatives"),
    ],
)
def test_mistakes_beside_it_are_found(replace, message):
    plan = plan_of(meta_model("llama"), [rule(replace, **{"class": "torch.nn.Linear"})])
    with pytest.raises(Exception, match=message):
        plan.check()
