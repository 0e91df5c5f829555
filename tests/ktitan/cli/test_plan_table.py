"""The table of a plan for people."""

from rich.console import Console

from ktitan.cli.plan_table import plan_table
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


def test_table_shows_what_there_is():
    console = Console(width=200)
    rows = fold_rows([row("layers.0.[odd]", rule="[red]rules.yaml:7"), row("layers.1.norm", operator="keep", rule="")])
    with console.capture() as capture:
        console.print(plan_table(rows, lambda size: f"{size} bytes"))
    text = capture.get()
    assert "layers.0.[odd]" in text
    assert "[red]rules.yaml:7" in text
    assert "10 bytes" in text
    assert "notes" not in text
