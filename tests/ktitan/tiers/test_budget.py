import pytest

from ktitan.errors import BudgetError
from ktitan.tiers import Budget, format_bytes, parse_budget, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("22GiB", 22 << 30),
        ("22G", 22 << 30),
        ("22g", 22 << 30),
        ("22GB", 22 * 10**9),
        ("1.5 MiB", 3 << 19),
        ("800MB", 800 * 10**6),
        ("2k", 2048),
        ("2kB", 2000),
        ("1TiB", 1 << 40),
        ("17", 17),
        (17, 17),
        ("17B", 17),
        ("0", 0),
    ],
)
def test_sizes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1G", "1.2.3G", "22 GiBs", "many", "1e3"])
def test_what_is_not_a_size(text):
    with pytest.raises(BudgetError, match="not a size"):
        parse_bytes(text)


def test_budgets():
    assert parse_budget("vram=22GiB, ram=96GiB") == Budget(22 << 30, 96 << 30, None)
    assert parse_budget(None) == parse_budget("") == Budget()
    assert parse_budget(Budget(1)) == Budget(1)
    assert parse_budget("ram=0").limit("ram") == 0


@pytest.mark.parametrize("text", ["ram", "ram:1G", "disk=1G", "ram=1G,ram=2G", "ram=x", "ram=1G=2"])
def test_bad_budgets_name_the_item(text):
    with pytest.raises(BudgetError):
        parse_budget(text)


def test_formatting():
    assert [format_bytes(n) for n in (0, 1023, 1536, 5 << 20, 3 << 30, 1 << 41)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 MiB",
        "3.0 GiB",
        "2.00 TiB",
    ]
