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


def test_a_narrow_terminal_keeps_sizes_whole_and_says_what_it_leaves_out():
    rows = fold_rows([row(f"model.layers.{n}.mlp.down_proj.a_long_name", operator=f"op{n}", bytes=n) for n in range(9)])
    for width in (60, 80, 100, 139):
        console = Console(width=width)
        with console.capture() as capture:
            console.print(plan_table(rows, lambda size: f"{size:,} sized", width))
        text = capture.get()
        assert all(f"{n} sized" in text for n in range(9))
        assert max(map(len, text.splitlines())) <= width
        shown, _, told = text.partition("not shown: ")
        hidden = " ".join(told.split()).partition(" (")[0].split(", ")
        titles = shown.splitlines()[1].split()
        assert "operator" in titles and not set(hidden) & set(titles)
