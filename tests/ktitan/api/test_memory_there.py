"""What is loaded has to fit into this machine, whatever the budget says."""

import pytest

import ktitan
from ktitan.api import loading
from ktitan.errors import BudgetError
from ktitan.hardware import Cpu, Hardware, Memory

from support.tiny_models import on_meta, save_tiny


@pytest.mark.parametrize(("total", "limit"), [(1000, None), (1 << 40, 1000)])
def test_more_than_the_machine_has_is_refused_before_anything_is_read(tmp_path, monkeypatch, total, limit):
    save_tiny("llama", tmp_path)
    small = Hardware(Cpu("t", frozenset(), 1, 1, 1), Memory(total, 0, limit), ())
    monkeypatch.setattr(loading, "detect", lambda: small)
    model = on_meta(tmp_path)
    with pytest.raises(BudgetError, match=r"has 1000 B in all(.|\n)*smaller ram budget"):
        ktitan.optimize_and_load(model, "auto", weights=tmp_path, device="cpu", budget="ram=1TiB")
    assert all(parameter.is_meta for parameter in model.parameters())
