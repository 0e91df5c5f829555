"""Folding of a plan's rows, and the table for people."""

from dataclasses import dataclass, replace

import pytest
from rich.console import Console

from ktitan.cli.plan_table import fold_rows, number_set, plan_table


@dataclass(frozen=True)
class Row:
    path: str
    rule: str = "rules.yaml:3"
    operator: str = "linear.torch"
    format: str = "bf16"
    tier: str = "ram"
    device: str = "cpu"
    bytes: int = 10
    kernel: str = "torch"
    notes: str = ""


def folded(rows):
    return [(row.path, row.count, row.bytes) for row in fold_rows(rows)]


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([3], "3"), ([0, 1, 2], "0-2"), ([5, 0, 1, 2, 9, 8], "0-2,5,8-9"), ([1, 1], "1"), ([2, 4], "2,4")],
)
def test_number_set(numbers, text):
    assert number_set(numbers) == text


def test_layers_of_one_decision_share_a_row_and_bytes_add_up():
    layers = [Row(f"model.layers.{layer}.mlp.experts", bytes=layer) for layer in range(3, 61)]
    rows = [Row("model.embed_tokens"), *layers, Row("lm_head")]
    assert folded(rows) == [
        ("model.embed_tokens", 1, 10),
        ("model.layers.[3-60].mlp.experts", 58, sum(range(3, 61))),
        ("lm_head", 1, 10),
    ]


@pytest.mark.parametrize("field", ["rule", "operator", "format", "tier", "device", "kernel", "notes"])
def test_another_decision_is_another_row(field):
    rows = [Row(f"layers.{layer}.mlp") for layer in range(6)]
    for layer in (2, 5):
        rows[layer] = replace(rows[layer], **{field: "other"})
    assert folded(rows) == [("layers.[0-1,3-4].mlp", 4, 40), ("layers.[2,5].mlp", 2, 20)]


def test_experts_fold_inside_layers():
    rows = [Row(f"layers.{layer}.experts.{expert}.up") for layer in range(2) for expert in range(4)]
    assert folded(rows) == [("layers.[0-1].experts.[0-3].up", 8, 80)]
    rows.append(Row("layers.2.experts.0.up"))
    assert folded(rows) == [("layers.[0-1].experts.[0-3].up", 8, 80), ("layers.2.experts.0.up", 1, 10)]


def test_different_modules_do_not_fold():
    assert folded([Row("layers.0.a"), Row("layers.1.b"), Row("layers.1")]) == [
        ("layers.0.a", 1, 10),
        ("layers.1.b", 1, 10),
        ("layers.1", 1, 10),
    ]
    assert fold_rows([]) == []


def test_table_shows_what_there_is():
    console = Console(width=200)
    rows = fold_rows([Row("layers.0.[odd]", rule="[red]rules.yaml:7"), Row("layers.1.norm", operator="keep", rule="")])
    with console.capture() as capture:
        console.print(plan_table(rows, lambda size: f"{size} bytes"))
    text = capture.get()
    assert "layers.0.[odd]" in text
    assert "[red]rules.yaml:7" in text
    assert "10 bytes" in text
    assert "notes" not in text
