"""What is printed: JSON lines with the machine first, a table for people."""

from __future__ import annotations

import json

import torch

from ktitan.bench.report import machine, print_json, print_table
from ktitan.bench.result import Result
from ktitan.hardware import Cpu, Gpu, Hardware, Memory

GIB = 1 << 30
CHIP, CARD = Cpu("Chip [x]", frozenset(), 2, 4, 3), Gpu(0, "G", 1, 1, (9, 0))
HARDWARE = Hardware(CHIP, Memory(8 * GIB, 6 * GIB, 7 * GIB), (CARD,))
FULL = Result("case-a", "reads [b]", 1234.5, "GB/s", 2000.0, 0.61725, "torch.sum", 0.01234, 1.5, 7, 0.0123)
BARE = Result("case-b", "products", 5.0, "TFLOP/s")


def test_machine():
    about = machine(HARDWARE)
    assert about["torch"] == torch.__version__
    assert (about["cpu"], about["usable_cpus"], about["gpus"]) == ("Chip [x]", 3, ["G"])
    assert about["memory_limit_bytes"] == 7 * GIB


def test_json_lines(capsys):
    print_json([FULL, BARE], machine(HARDWARE))
    first, *rest = capsys.readouterr().out.splitlines()
    assert json.loads(first) == {"machine": machine(HARDWARE)}
    assert rest == [FULL.to_json(), BARE.to_json()]


def test_table(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    print_table([FULL, BARE], machine(HARDWARE))
    out = capsys.readouterr().out
    headline = out.splitlines()[0]
    for part in ("Chip [x]", "3 CPUs used", "8.0 GiB", "limited to 7.0 GiB", f"torch {torch.__version__}", "G"):
        assert part in headline
    for part in ("case-a", "reads [b]", "1234 GB/s", "2000 (62%)", "torch.sum 0.0123 (1.50 x)", "7", "1.2%"):
        assert part in out
    assert "5 TFLOP/s" in out
    assert "None" not in out
