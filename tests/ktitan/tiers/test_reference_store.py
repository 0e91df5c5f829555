"""Demands of whole calls: what is held first, waves, and counters that add up."""

import random
import time

import pytest

from ktitan.tiers.reference import Policy, ReferenceStore, StoreSpec
from ktitan.tiers.reference.store import Wave

PAGE = 4096


def pooled(slots, records):
    return ReferenceStore(StoreSpec([0] * records, [PAGE] * records, [slots]))


def test_what_is_there_is_held_before_anything_makes_room():
    store = pooled(3, 6)
    store.demand([0, 1, 2])
    assert store.demand([3, 0, 1]) == [Wave((0, 1), (3,), (2,), {0: 0, 1: 1, 3: 2})]


def test_a_record_that_many_want_is_one_demand():
    store = pooled(3, 6)
    store.demand([2, 2, 1, 2])
    assert (store.counters.demands, store.counters.misses, store.counters.hits) == (2, 2, 0)


def test_more_than_fits_comes_in_waves():
    store = pooled(2, 6)
    waves = store.demand([5, 4, 3, 2, 1])
    assert [wave.misses for wave in waves] == [(5, 4), (3,), (2,), (1,)]
    assert [wave.victims for wave in waves] == [(), (5,), (4,), (3,)]
    assert (store.counters.waves, store.counters.evictions) == (3, 3)


def test_a_failed_read_ends_the_call_and_the_next_one_works():
    store = pooled(2, 4)
    waves = store.demand([0, 1, 2], failing={1})
    assert [wave.misses for wave in waves] == [(0, 1), (2,)]
    assert store.residency.has(2) and not store.residency.has(1)
    assert store.demand([1, 2]) == [Wave((2,), (1,), (), {2: 0, 1: 1})]


def test_steps_and_sequences_follow_from_the_calls():
    store = pooled(4, 12)
    for first, tokens in [(0, 20), (4, 20), (8, 20), (0, 20), (0, 1), (4, 1), (4, 1), (0, 9), (4, 9)]:
        store.begin(first, tokens)
    counted = store.counters
    assert (counted.steps, counted.tokens, counted.sequences) == (5, 20 + 20 + 1 + 1 + 9, 2)


def test_tokens_are_counted_for_each_record():
    store = pooled(4, 4)
    store.demand([0, 1, 0])
    store.demand([1, 3], tokens=[5, 2])
    assert store.residency.tokens() == [2, 6, 0, 2]


@pytest.mark.parametrize("policy", set(Policy) - {Policy.LRU, Policy.SLRU})
def test_a_prompt_leaves_the_experts_that_most_tokens_chose(policy):
    """Not those that were read last: of 128 in slots for 32."""
    random_tokens = random.Random(time.time_ns())
    spec = StoreSpec([0] * 128, [PAGE << 9] * 128, [34], pool_spares=[2], policy=policy, growth=2 ** (1 / 32))
    store = ReferenceStore(spec)
    chose = [max(1, int(400 * 0.97**place)) for place in range(128)]
    random_tokens.shuffle(chose)
    for _ in range(3):
        store.begin(0, 512)
        store.demand(range(128), tokens=chose)
        stay = sum(chose[record] for record in range(128) if store.residency.has(record))
        assert stay >= 0.6 * sum(sorted(chose)[-34:])  # of any 34: 0.4


def test_a_prompt_asks_for_few_at_a_time():
    store = ReferenceStore(StoreSpec([0] * 64, [PAGE << 10] * 64, [32]))
    store.begin(0, 100)
    waves = store.demand(range(64))
    assert [len(wave.misses) for wave in waves] == [8] + [1] * 56  # 32 MiB
    store.begin(0, 1)
    assert len(store.demand(range(32))[0].misses) == 32


def test_what_is_not_admitted_passes_and_lingers():
    spec = StoreSpec([0] * 6, [PAGE] * 6, [3], pool_spares=[1], policy=Policy.ADMITTING)
    store = ReferenceStore(spec)
    for _ in range(3):
        store.demand([0, 1])
    store.demand([2])
    assert store.counters.passed == 1 and store.residency.has(2)
    assert store.demand([3])[0].victims == (2,)
    assert store.demand([0, 1, 3])[0].hits == (0, 1, 3)


def test_a_guess_is_counted_when_it_is_used_or_lost():
    store = ReferenceStore(StoreSpec([0] * 8, [PAGE] * 8, [4], pool_spares=[1]))
    store.demand([0, 1, 2])
    assert store.guess(3) and not store.guess(3) and not store.guess(4)
    store.guess_came(3)
    assert store.guess(4)  # nobody used 3
    store.demand([4])
    counted = store.counters
    assert (counted.guesses, counted.guesses_used, counted.guesses_late, counted.guesses_wasted) == (2, 1, 1, 1)
    assert counted.hits == 1 and not store.residency.has(3)


def test_counters_add_up_over_any_calls():
    seed = time.time_ns()
    rng = random.Random(seed)
    for _ in range(100):
        records, dense = rng.randint(1, 30), rng.randint(1, 8)
        slots = rng.randint(1, 12)
        kinds = [0] * records + [-1] * dense
        rng.shuffle(kinds)
        store = ReferenceStore(StoreSpec(kinds, [PAGE] * len(kinds), [slots], rng.randint(2, dense + 2) * PAGE))
        experts = [record for record, pool in enumerate(kinds) if pool == 0]
        fixed = [record for record, pool in enumerate(kinds) if pool < 0]
        missed = 0
        for _ in range(20):
            wanted = rng.choices(experts, k=rng.randint(1, 20))
            waves = store.demand(wanted, failing=rng.choices(experts, k=rng.choice([0, 0, 1])))
            missed += sum(len(wave.misses) for wave in waves)
            for record in fixed:
                missed += not store.use(record)
        counted = store.counters
        assert counted.hits + counted.misses == counted.demands, seed
        assert counted.misses == missed and counted.evictions <= counted.misses, seed
        assert store.residency.count() <= slots, seed


def test_a_cycle_that_does_not_fit_reads_only_what_does_not_stay():
    store = ReferenceStore(StoreSpec([-1] * 10, [PAGE] * 10, [], 6 * PAGE))
    for record in range(10):
        store.use(record)
    before = store.counters.read_bytes
    hits = [store.use(record) for record in range(10)]
    assert hits == [True] * 4 + [False] * 6
    assert store.counters.read_bytes - before == 6 * PAGE
