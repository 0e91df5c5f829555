"""Folding of a plan's rows."""

from dataclasses import replace

import pytest

from ktitan.plan.fold import fold_rows
from ktitan.plan.rows import PlanRow


def row(path, **changes):
    shared = {
        "module": "Linear",
        "rule": "rules.yaml:3",
        "operator": "linear.torch",
        "format": "bf16",
        "kernel": "torch",
    }
    return PlanRow(path, **{**shared, "tier": "ram", "device": "cpu", "bytes": 10, "notes": "", **changes})


def folded(rows):
    return [(one.path, len(one.rows), one.bytes) for one in fold_rows(rows)]


def test_layers_of_one_decision_share_a_row_and_bytes_add_up():
    layers = [row(f"model.layers.{layer}.mlp.experts", bytes=layer) for layer in range(3, 61)]
    rows = [row("model.embed_tokens"), *layers, row("lm_head")]
    assert folded(rows) == [
        ("model.embed_tokens", 1, 10),
        ("model.layers.[3-60].mlp.experts", 58, sum(range(3, 61))),
        ("lm_head", 1, 10),
    ]


@pytest.mark.parametrize("field", ["rule", "operator", "format", "tier", "device", "kernel", "notes"])
def test_another_decision_is_another_row(field):
    rows = [row(f"layers.{layer}.mlp") for layer in range(6)]
    for layer in (2, 5):
        rows[layer] = replace(rows[layer], **{field: "other"})
    assert folded(rows) == [("layers.[0-1,3-4].mlp", 4, 40), ("layers.[2,5].mlp", 2, 20)]


def test_experts_fold_inside_layers():
    rows = [row(f"layers.{layer}.experts.{expert}.up") for layer in range(2) for expert in range(4)]
    assert folded(rows) == [("layers.[0-1].experts.[0-3].up", 8, 80)]
    rows.append(row("layers.2.experts.0.up"))
    assert folded(rows) == [("layers.[0-1].experts.[0-3].up", 8, 80), ("layers.2.experts.0.up", 1, 10)]


def test_different_modules_do_not_fold():
    assert folded([row("layers.0.a"), row("layers.1.b"), row("layers.1")]) == [
        ("layers.0.a", 1, 10),
        ("layers.1.b", 1, 10),
        ("layers.1", 1, 10),
    ]
    assert fold_rows([]) == []


def test_the_stock_class_is_no_part_of_a_decision():
    rows = [row("layers.0.mlp", module="Dense"), row("layers.1.mlp", module="Sparse")]
    assert folded(rows) == [("layers.[0-1].mlp", 2, 20)]
    assert [one.module for one in fold_rows(rows)[0].rows] == ["Dense", "Sparse"]
