"""How a cache is shared out."""

import random

import pytest

from ktitan.errors import BudgetError
from ktitan.tiers.options import CHOICES, CacheOptions
from ktitan.tiers.pools import Pooled, PoolShare, cache_need, class_of, class_sizes, least_cycle, share_out

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


def check_domains(records, shares, options):
    """What residency.h asks for: a domain is of one pool, and a pool's domains and spares fit into its slots."""
    pool_of_domain = {}
    for pool, domain in zip(shares.pool_of, shares.domain_of, strict=True):
        assert pool_of_domain.setdefault(domain, pool) == pool
    assert sorted(pool_of_domain) == list(range(len(shares.domain_slots))) and min(shares.domain_slots, default=1) >= 1
    for number, pool in enumerate(shares.pools):
        members = sum(slots for domain, slots in enumerate(shares.domain_slots) if pool_of_domain[domain] == number)
        assert members + pool.spares == pool.slots
        short = pool.slots < shares.pool_of.count(number)
        assert pool.spares == 0 or (options.has_guests and short)
    if options.scope == "global":
        assert len(shares.domain_slots) == len(shares.pools)


def test_the_shares_fit_and_leave_little_over():
    generator = random.Random()
    for _ in range(300):
        pooled, dense, rows = sizes(generator, 60), sizes(generator, 40), [3000] * generator.randrange(2)
        need = cache_need(pooled, dense, rows)
        cache = generator.randint(need.least_bytes, need.all_bytes + 10 * PAGE)
        records = [Pooled(size, generator.randrange(4)) for size in pooled]
        options = CacheOptions(*(generator.choice(choices) for choices in CHOICES.values()))
        shares = share_out(cache, records, dense, rows, options)
        check_domains(records, shares, options)
        used = sum(pool.slot_bytes * pool.slots for pool in shares.pools) + shares.cycle_bytes + shares.row_bytes
        assert used <= cache and shares.cycle_bytes >= least_cycle(dense)
        assert all(pool.slots >= 1 for pool in shares.pools)
        if cache >= need.all_bytes:
            assert used == need.all_bytes
        elif pooled and shares.cycle_bytes < need.cycle_bytes:  # dense records come first
            assert all(pool.slots <= 2 for pool in shares.pools)


def test_less_than_the_least_is_refused():
    with pytest.raises(BudgetError, match="raise the ram budget"):
        share_out(3 * PAGE, [Pooled(2 * PAGE, 0)] * 2, [], [])
    assert share_out(4 * PAGE, [Pooled(2 * PAGE, 0)] * 2, [], []).pools == (PoolShare(2 * PAGE, 2),)


def test_a_cycle_needs_its_two_largest_neighbours_the_last_and_first_among_them():
    assert least_cycle([]) == 0 and least_cycle([5]) == 5
    assert least_cycle([9, 1, 2, 8]) == 17
