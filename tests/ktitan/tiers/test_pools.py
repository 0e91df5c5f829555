"""How a cache is shared out."""

import random

import pytest

from ktitan.errors import BudgetError
from ktitan.tiers.pools import cache_need, class_of, class_sizes, least_cycle, share_out

PAGE = 4096


def sizes(generator, most):
    kinds = [PAGE * generator.randrange(1, 900) for _ in range(3)]
    return [generator.choice(kinds) for _ in range(generator.randrange(most))]


def test_size_classes_waste_at_most_three_percent():
    generator = random.Random()
    for _ in range(200):
        wanted = [PAGE * generator.randrange(1, 5000) for _ in range(generator.randrange(1, 40))]
        classes = class_sizes(wanted)
        for size in wanted:
            slot = classes[class_of(size, classes)]
            assert size <= slot and slot - size <= 0.03 * slot


def test_the_shares_fit_and_leave_little_over():
    generator = random.Random()
    for _ in range(300):
        pooled, dense, rows = sizes(generator, 60), sizes(generator, 40), [3000] * generator.randrange(2)
        need = cache_need(pooled, dense, rows)
        cache = generator.randint(need.least_bytes, need.all_bytes + 10 * PAGE)
        shares = share_out(cache, pooled, dense, rows)
        used = sum(size * count for size, count in shares.pools) + shares.cycle_bytes + shares.row_bytes
        assert used <= cache and shares.cycle_bytes >= least_cycle(dense)
        assert all(count >= 1 for _, count in shares.pools)
        if cache >= need.all_bytes:
            assert used == need.all_bytes
        elif pooled and shares.cycle_bytes < need.cycle_bytes:  # dense records come first
            assert all(count <= 2 for _, count in shares.pools)


def test_less_than_the_least_is_refused():
    with pytest.raises(BudgetError, match="raise the ram budget"):
        share_out(3 * PAGE, [2 * PAGE, 2 * PAGE], [], [])
    assert share_out(4 * PAGE, [2 * PAGE, 2 * PAGE], [], []).pools == ((2 * PAGE, 2),)


def test_a_cycle_needs_its_two_largest_neighbours_the_last_and_first_among_them():
    assert least_cycle([]) == 0 and least_cycle([5]) == 5
    assert least_cycle([9, 1, 2, 8]) == 17
