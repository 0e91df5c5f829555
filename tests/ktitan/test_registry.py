import pytest

from ktitan.errors import PlanError
from ktitan.registry import Registry, nearest


def test_names_are_unique_and_sorted():
    table = Registry("thing")
    table.add("b", 1)
    table.add("a", 2)
    table.add("a", 2)
    assert table.names() == ["a", "b"] and table.get("a") == 2 and table.find("c") is None
    with pytest.raises(PlanError, match="registered twice"):
        table.add("a", 3)


def test_a_wrong_name_gets_the_nearest_one():
    table = Registry("operator")
    table.add("linear.torch", object())
    with pytest.raises(PlanError) as caught:
        table.get("linear.trch")
    assert caught.value.remedy == "did you mean 'linear.torch'?"
    assert nearest("zzz", ["a", "b"]) == "known: a, b"
    assert nearest("zzz", []) == "there is none to choose from"
