"""How another budget is shared out between the KV cache and streamed weights."""

import random

import pytest

from ktitan.errors import BudgetError
from ktitan.plan import rebudget
from ktitan.plan.rebudget import KVPlan, carry_over, share_again
from ktitan.plan.rows import Plan
from ktitan.tiers import Budget
from ktitan.tiers.pools import CacheNeed

WEIGHTS, WORKSPACE, PAGE, PAGES = 5000, 700, 640, 8
LEAST, ALL = 3000, 20000


def plan(limit, cache=ALL):
    """A plan of a streaming model with KV for 500 tokens."""
    parts = {"ram": {"weights": WEIGHTS, "kv": PAGE * PAGES, "workspace": WORKSPACE, "cache": cache}}
    budget = Budget(ram_bytes=limit)
    need = CacheNeed(ALL, 0, 0, LEAST)
    return Plan(parts=parts, cache=need, limits={"ram": limit}, budget=budget, context_tokens=500)


def shared(limit, held=0):
    made = plan(40000)
    return share_again(made, KVPlan.of(made), Budget(ram_bytes=limit), held, LEAST)


def test_the_cache_gets_what_is_left_beside_the_planned_kv():
    fixed = WEIGHTS + WORKSPACE + PAGE * PAGES
    for cache in (LEAST, 12345, ALL):
        found = shared(fixed + cache)
        assert (found.kv, found.cache_bytes, found.context_tokens) == ({"ram": PAGE * PAGES}, cache, 500)
    assert shared(fixed + ALL + 999).cache_bytes == ALL


def test_kv_gives_way_by_whole_pages_but_not_below_what_is_held():
    generator = random.Random()
    for _ in range(100):
        pages = generator.randint(1, PAGES - 1)
        limit = WEIGHTS + WORKSPACE + LEAST + PAGE * pages + generator.randrange(PAGE)
        found = shared(limit, held=generator.randint(0, PAGE * pages))
        assert (found.kv["ram"], found.context_tokens) == (PAGE * pages, 64 * pages)
        assert LEAST <= found.cache_bytes == limit - WEIGHTS - WORKSPACE - PAGE * pages
        with pytest.raises(BudgetError) as caught:
            shared(limit, held=PAGE * pages + 1)
        for number in ("ram: needs at least", "weights 4.9 KiB", "workspace 700 B", "kv ", "cache 2.9 KiB", "allows"):
            assert number in str(caught.value)
    with pytest.raises(BudgetError):
        shared(WEIGHTS + WORKSPACE + LEAST + PAGE - 1)


def test_up_again_gives_the_planned_kv_back():
    made = plan(40000)
    first = KVPlan.of(made)
    share_again(made, first, Budget(ram_bytes=WEIGHTS + WORKSPACE + LEAST + 2 * PAGE), 0, LEAST).enter(made)
    assert (made.parts["ram"]["kv"], made.parts["ram"]["cache"], made.context_tokens) == (2 * PAGE, LEAST, 128)
    assert made.totals["ram"] == made.limits["ram"] == made.budget.ram_bytes
    share_again(made, first, Budget(ram_bytes=40000), 0, LEAST).enter(made)
    assert (made.parts["ram"]["kv"], made.parts["ram"]["cache"], made.context_tokens) == (PAGES * PAGE, ALL, 500)


def test_keys_and_values_on_two_tiers_keep_the_same_tokens():
    made = plan(40000)
    made.parts["vram"] = {"weights": 100, "kv": 10 * PAGES, "workspace": 0}
    made.limits["vram"] = 100000
    found = share_again(made, KVPlan.of(made), Budget(vram_bytes=135), 0, LEAST)
    assert found.kv == {"ram": 3 * PAGE, "vram": 30} and found.limits == {"ram": 40000, "vram": 135}
    with pytest.raises(BudgetError) as caught:
        share_again(made, KVPlan.of(made), Budget(vram_bytes=99, ram_bytes=99), 0, LEAST)
    assert len(caught.value.faults) == 2


def test_tiers_that_are_not_named_keep_their_limits():
    assert carry_over(Budget(vram_bytes=1, ram_bytes=2), Budget(ram_bytes=3)) == Budget(vram_bytes=1, ram_bytes=3)


def test_more_than_the_machine_has_is_refused(monkeypatch):
    from ktitan.hardware import Memory

    monkeypatch.setattr(rebudget, "detect_memory", lambda: Memory(1 << 40, 0, 20000))
    assert shared(20000).cache_bytes < ALL
    with pytest.raises(BudgetError, match="in all"):
        shared(1 << 30)
