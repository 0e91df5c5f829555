"""The contract of KV pools, for each pool."""

import copy
import pickle
import random

import pytest
import torch

from ktitan.context import KVLayerSpec
from ktitan.engine import kv_torch
from ktitan.engine.kv_native import NativeKVPool
from ktitan.engine.kv_torch import TorchKVPool
from ktitan.errors import BudgetError, UnsupportedError
from ktitan.native import native_reason

from support.kv_pools import KEY, PAGE_BYTES, TOKEN_BYTES, VALUE, assert_holds, filled, fresh


@pytest.fixture(params=[TorchKVPool, NativeKVPool])
def make_pool(request):
    if request.param is NativeKVPool and native_reason() is not None:
        pytest.skip("no native library")
    return request.param


def used_pages(pool, layers=1):
    assert pool.used_bytes % (layers * PAGE_BYTES) == 0
    return pool.used_bytes // (layers * PAGE_BYTES)


@pytest.mark.parametrize("tokens", [0, 1, 63, 64, 65, 130])
@pytest.mark.parametrize("more", [0, 1, 64, 1200])
def test_append_across_page_borders(make_pool, tokens, more):
    pool = make_pool()
    first, second = fresh(tokens), fresh(more)
    sequence = pool.new_sequence()
    pool.append(0, sequence, *first)
    pool.append(0, sequence, *second)
    assert_holds(pool, 0, sequence, *(torch.cat(pair) for pair in zip(first, second, strict=True)))
    assert len(pool.table(sequence)) == used_pages(pool) == -(-(tokens + more) // 64)


def test_layers_have_their_own_shapes_and_one_table(make_pool):
    pool = make_pool()
    sequence = pool.new_sequence()
    latent, rope = torch.randn(70, 1, 16), torch.randn(70, 1, 4)
    pool.append(3, sequence, *(plain := fresh(70)))
    pool.append(1, sequence, latent, rope)
    assert_holds(pool, 3, sequence, *plain)
    assert_holds(pool, 1, sequence, latent, rope)
    assert list(pool.layers()) == [1, 3]
    assert pool.spec(1) == KVLayerSpec(1, 16, 1, 4, torch.float32, torch.device("cpu"))
    assert pool.length(2, sequence) == 0
    assert pool.used_bytes == 2 * 64 * (TOKEN_BYTES + 20 * 4)


def test_fork_shares_until_written(make_pool):
    pool = make_pool()
    sequence, stored = filled(pool, 100, layers=(0, 1))
    fork = pool.fork(sequence)
    assert pool.table(fork) == pool.table(sequence) and used_pages(pool, 2) == 2
    extra = {who: {layer: fresh(10) for layer in (0, 1)} for who in (sequence, fork)}
    for layer in (0, 1):
        for who in (fork, sequence):
            pool.append(layer, who, *extra[who][layer])
    # The first writer takes a copy of the half-full page, the second one keeps the original.
    assert used_pages(pool, 2) == 3
    assert pool.table(fork)[0] == pool.table(sequence)[0] and pool.table(fork)[1] != pool.table(sequence)[1]
    for who in (sequence, fork):
        for layer in (0, 1):
            both = (torch.cat(pair) for pair in zip(stored[layer], extra[who][layer], strict=True))
            assert_holds(pool, layer, who, *both)
    pool.free(sequence)
    assert used_pages(pool, 2) == 2
    pool.free(fork)
    assert pool.used_bytes == 0


def test_fork_at_a_page_border_copies_nothing(make_pool):
    pool = make_pool()
    sequence, stored = filled(pool, 128)
    fork = pool.fork(sequence)
    pool.append(0, fork, *(extra := fresh(1)))
    assert used_pages(pool) == 3
    assert_holds(pool, 0, sequence, *stored[0])
    assert_holds(pool, 0, fork, *(torch.cat(pair) for pair in zip(stored[0], extra, strict=True)))


def test_packed_append_to_forks_copies_one_page_less_than_there_are_writers(make_pool):
    pool = make_pool()
    sequence, stored = filled(pool, 10)
    rows = (sequence, pool.fork(sequence), pool.fork(sequence))
    counts = (1, 60, 0)
    keys, values = fresh(61)
    pool.append_packed(0, rows, counts, keys, values)
    assert_holds(pool, 0, rows[0], torch.cat([stored[0][0], keys[:1]]), torch.cat([stored[0][1], values[:1]]))
    assert_holds(pool, 0, rows[1], torch.cat([stored[0][0], keys[1:]]), torch.cat([stored[0][1], values[1:]]))
    assert_holds(pool, 0, rows[2], *stored[0])
    # Two copies' worth of first pages, the page that the third row keeps, and the second row's second page.
    assert used_pages(pool) == 4


def test_crop_then_append_leaves_the_fork_alone(make_pool):
    pool = make_pool()
    sequence, stored = filled(pool, 200)
    fork = pool.fork(sequence)
    pool.crop(fork, 70)
    assert len(pool.table(fork)) == 2
    pool.append(0, fork, *(extra := fresh(5)))
    assert_holds(pool, 0, sequence, *stored[0])
    assert_holds(pool, 0, fork, *(torch.cat([old[:70], new]) for old, new in zip(stored[0], extra, strict=True)))
    pool.crop(fork, 1000)
    assert pool.length(0, fork) == 75
    pool.crop(fork, 0)
    assert pool.table(fork) == () and pool.length(0, fork) == 0


def test_freed_pages_are_used_again(make_pool):
    pool = make_pool()
    sequence, _ = filled(pool, 300)
    before, allocated = pool.table(sequence), pool.allocated_bytes
    pool.free(sequence)
    again, stored = filled(pool, 300)
    assert again != sequence and pool.table(again) == before and pool.allocated_bytes == allocated
    assert_holds(pool, 0, again, *stored[0])


def test_trim_gives_the_free_tail_back(make_pool):
    pool = make_pool()
    kept, stored = filled(pool, 65)
    dropped, _ = filled(pool, 3000)
    pool.free(dropped)
    before = pool.allocated_bytes
    assert pool.trim() == before - 2 * PAGE_BYTES
    assert pool.allocated_bytes == pool.used_bytes == 2 * PAGE_BYTES
    assert_holds(pool, 0, kept, *stored[0])
    pool.append(0, kept, *(extra := fresh(100)))
    assert_holds(pool, 0, kept, *(torch.cat(pair) for pair in zip(stored[0], extra, strict=True)))


def test_plans_of_an_earlier_step_are_not_used_after_a_fork(make_pool):
    pool = make_pool()
    sequence, stored = filled(pool, 10)
    pool.append(0, sequence, *(last := fresh(1)))
    fork = pool.fork(sequence)
    pool.crop(sequence, 10)
    pool.gather(0, sequence)
    pool.append(0, sequence, *(other := fresh(1)))  # the same place as before, now on a shared page
    assert_holds(pool, 0, sequence, *(torch.cat(pair) for pair in zip(stored[0], other, strict=True)))
    assert_holds(pool, 0, fork, *(torch.cat(pair) for pair in zip(stored[0], last, strict=True)))


def test_gather_batch(make_pool):
    pool = make_pool()
    rows, stored = zip(*(filled(pool, 130) for _ in range(3)), strict=True)
    for _ in range(70):  # past a page border, so that the rows' pages interleave
        keys, values = fresh(3)
        pool.append_packed(0, rows, (1, 1, 1), keys, values)
        stored = [
            {0: (torch.cat([s[0][0], k[None]]), torch.cat([s[0][1], v[None]]))}
            for s, k, v in zip(stored, keys, values, strict=True)
        ]
    keys, values = pool.gather_batch(0, rows)
    assert torch.equal(keys, torch.stack([s[0][0] for s in stored]))
    assert torch.equal(values, torch.stack([s[0][1] for s in stored]))
    shorter, _ = filled(pool, 5)
    with pytest.raises(UnsupportedError, match=r"\[5, 200\] tokens"):
        pool.gather_batch(0, (rows[0], shorter))


def test_gather_of_nothing(make_pool):
    pool = make_pool()
    sequence, _ = filled(pool, 0)
    keys, values = pool.gather_batch(0, (sequence, sequence))
    assert keys.shape == (2, 0, *KEY) and values.shape == (2, 0, *VALUE)
    with pytest.raises(UnsupportedError, match="layer 7"):
        pool.gather(7, sequence)


@pytest.mark.parametrize("budget_pages", [1, 5, 40])
def test_budget_is_a_hard_limit_that_can_be_reached(make_pool, budget_pages):
    pool = make_pool(budget_bytes=budget_pages * PAGE_BYTES + 1)
    sequence = pool.new_sequence()
    for _ in range(budget_pages * 2):
        pool.append(0, sequence, *fresh(32))
        assert pool.used_bytes <= pool.allocated_bytes <= pool.budget_bytes
    keys, values = (part.clone() for part in pool.gather(0, sequence))
    with pytest.raises(BudgetError) as caught:
        pool.append(0, sequence, *fresh(65))
    message = str(caught.value)
    assert f"{2 * PAGE_BYTES} more bytes" in message and f" 1 of {pool.budget_bytes} " in message
    assert caught.value.faults[0].remedy
    assert_holds(pool, 0, sequence, keys, values)
    pool.crop(sequence, 10)
    pool.append(0, sequence, *(extra := fresh(54)))
    assert_holds(pool, 0, sequence, torch.cat([keys[:10], extra[0]]), torch.cat([values[:10], extra[1]]))


def test_refusal_is_all_or_nothing_for_a_packed_append(make_pool):
    pool = make_pool(budget_bytes=3 * PAGE_BYTES)
    (a, stored_a), (b, stored_b) = filled(pool, 60), filled(pool, 60)
    with pytest.raises(BudgetError):
        pool.append_packed(0, (a, b), (10, 10), *fresh(20))
    assert used_pages(pool) == 2
    assert_holds(pool, 0, a, *stored_a[0])
    assert_holds(pool, 0, b, *stored_b[0])
    pool.append_packed(0, (a, b), (10, 4), *fresh(14))
    assert used_pages(pool) == 3


def test_copy_on_write_is_paid_for(make_pool):
    pool = make_pool(budget_bytes=2 * PAGE_BYTES)
    sequence, stored = filled(pool, 70)
    fork = pool.fork(sequence)
    with pytest.raises(BudgetError):
        pool.append(0, fork, *fresh(1))
    assert_holds(pool, 0, fork, *stored[0])
    pool.free(sequence)
    pool.append(0, fork, *fresh(1))
    assert pool.length(0, fork) == 71


def test_a_layer_that_does_not_fit_is_not_declared(make_pool):
    pool = make_pool(budget_bytes=3 * PAGE_BYTES)
    sequence, stored = filled(pool, 100)
    with pytest.raises(BudgetError, match="layer 1"):
        pool.append(1, sequence, *fresh(100))
    assert list(pool.layers()) == [0] and pool.used_bytes == 2 * PAGE_BYTES
    assert_holds(pool, 0, sequence, *stored[0])
    pool.crop(sequence, 64)
    pool.append(1, sequence, *fresh(64))
    assert pool.used_bytes == pool.allocated_bytes == 2 * PAGE_BYTES


def test_a_new_layer_that_cannot_get_more_pages_is_not_declared(make_pool):
    pool = make_pool(budget_bytes=2 * PAGE_BYTES)
    sequence, _ = filled(pool, 64)
    with pytest.raises(BudgetError):
        pool.append(1, sequence, *fresh(65))
    assert list(pool.layers()) == [0]


def test_pages_ahead_make_room_for_later_layers(make_pool):
    pool = make_pool(budget_bytes=12 * PAGE_BYTES)
    sequence = pool.new_sequence()
    stored = [fresh(64) for _ in range(12)]
    for layer, parts in enumerate(stored):
        pool.append(layer, sequence, *parts)
    for layer, parts in enumerate(stored):
        assert_holds(pool, layer, sequence, *parts)


def test_reserve_takes_pages_before_the_layers_run(make_pool):
    pool = make_pool(budget_bytes=8 * PAGE_BYTES)
    sequence, _ = filled(pool, 60, layers=(0, 1))
    fork = pool.fork(sequence)
    pool.reserve((sequence, fork), (70, 3))
    tables = [pool.table(sequence), pool.table(fork)]
    assert [len(table) for table in tables] == [3, 1] and used_pages(pool, 2) == 4
    assert pool.length(0, sequence) == 60
    for layer in (0, 1):
        pool.append_packed(layer, (sequence, fork), (70, 3), *fresh(73))
    assert tables == [pool.table(sequence), pool.table(fork)]
    with pytest.raises(BudgetError):
        pool.reserve((fork,), (65,))
    assert used_pages(pool, 2) == 4
    pool.reserve((fork,), (1,))
    pool.crop(sequence, 130)
    assert used_pages(pool, 2) == 4


@pytest.mark.parametrize(
    "keys, values",
    [
        (torch.zeros(4, 2, 4), torch.zeros(4, *VALUE)),
        (torch.zeros(4, 1, 3), torch.zeros(4, *VALUE)),
        (torch.zeros(4, *KEY), torch.zeros(4, 1, 6)),
        (torch.zeros(4, *KEY), torch.zeros(3, *VALUE)),
        (torch.zeros(4, 6), torch.zeros(4, *VALUE)),
        (torch.zeros(4, *KEY).half(), torch.zeros(4, *VALUE).half()),
        (torch.zeros(4, *KEY), torch.zeros(4, *VALUE).half()),
        (torch.zeros(4, *KEY, device="meta"), torch.zeros(4, *VALUE, device="meta")),
        (torch.zeros(4, *KEY, requires_grad=True), torch.zeros(4, *VALUE)),
    ],
)
def test_wrong_tensors_are_refused(make_pool, keys, values):
    pool = make_pool()
    sequence, stored = filled(pool, 30)
    with pytest.raises(UnsupportedError, match="layer 0"):
        pool.append(0, sequence, keys, values)
    assert_holds(pool, 0, sequence, *stored[0])


def test_unequal_dtypes_are_refused_in_a_new_layer(make_pool):
    pool = make_pool()
    with pytest.raises(UnsupportedError, match="do not fit each other"):
        pool.append(0, pool.new_sequence(), torch.zeros(4, *KEY), torch.zeros(4, *VALUE).half())
    assert list(pool.layers()) == []


def test_unknown_and_repeated_sequences_are_refused(make_pool):
    pool = make_pool()
    sequence, _ = filled(pool, 3)
    with pytest.raises(UnsupportedError, match="twice"):
        pool.append_packed(0, (sequence, sequence), (1, 1), *fresh(2))
    with pytest.raises(UnsupportedError, match="to -1 tokens"):
        pool.crop(sequence, -1)
    pool.free(sequence)
    for call in (pool.free, pool.fork, pool.table, lambda s: pool.append(0, s, *fresh(1))):
        with pytest.raises(UnsupportedError, match=f"no sequence {sequence}"):
            call(sequence)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda pool: pickle.loads(pickle.dumps(pool))])
def test_copies_are_independent(make_pool, duplicate):
    pool = make_pool(budget_bytes=50 * PAGE_BYTES)
    sequence, stored = filled(pool, 70)
    pool.gather(0, sequence)
    twin = duplicate(pool)
    twin.append(0, sequence, *fresh(1))
    twin.crop(sequence, 3)
    twin.append(0, sequence, *fresh(9))
    assert_holds(pool, 0, sequence, *stored[0])
    assert pool.length(0, sequence) == 70 and twin.length(0, sequence) == 12 and twin.budget_bytes == pool.budget_bytes


def test_inference_mode_and_grad_mode_may_alternate(make_pool):
    pool = make_pool()
    with torch.inference_mode():
        sequence, stored = filled(pool, 70)
        fork = pool.fork(sequence)
    pool.append(0, fork, *(extra := fresh(4)))
    with torch.inference_mode():
        pool.append(0, sequence, *fresh(4))
        pool.free(sequence)
        pool.trim()
        pool = copy.deepcopy(pool)
    pool.append(0, fork, *(more := fresh(100)))
    assert_holds(pool, 0, fork, *(torch.cat(parts) for parts in zip(stored[0], extra, more, strict=True)))


class ListPool:
    """What a pool must do, in lists: per sequence and layer the tokens, and nothing shared."""

    def __init__(self, layers):
        self.layers = layers
        self.sequences = {}

    def copy(self, source, target):
        self.sequences[target] = {layer: list(tokens) for layer, tokens in self.sequences[source].items()}


def check(pool, model):
    users = {}
    for sequence, layers in model.sequences.items():
        table = pool.table(sequence)
        longest = max(len(tokens) for tokens in layers.values())
        assert len(table) == -(-longest // 64) and len(set(table)) == len(table)
        for page in table:
            users[page] = users.get(page, 0) + 1
        for layer, tokens in layers.items():
            assert pool.length(layer, sequence) == len(tokens)
            if tokens:
                keys, values = (torch.stack(parts) for parts in zip(*tokens, strict=True))
                assert_holds(pool, layer, sequence, keys, values)
    assert pool.used_bytes == len(users) * PAGE_BYTES * len(pool.layers())
    if isinstance(pool, TorchKVPool):
        assert all(pool._ledger.references(page) == count for page, count in users.items())
    assert pool.allocated_bytes <= (pool.budget_bytes or pool.allocated_bytes)


@pytest.mark.parametrize("seed", range(6))
def test_random_operations_against_lists(make_pool, seed, monkeypatch):
    monkeypatch.setattr(kv_torch, "_AHEAD_MIN_PAGES", seed % 3)  # small chunks: sequences span several
    monkeypatch.setattr(kv_torch, "_AHEAD_MAX_PAGES", seed % 3)
    chance = random.Random(seed)
    layers = (0, 1)
    pool = make_pool(budget_bytes=None if seed % 2 else 24 * PAGE_BYTES)
    model = ListPool(layers)
    refusals = 0
    for _ in range(150):
        known = list(model.sequences)
        action = chance.choice(["new", "step", "step", "step", "step", "fork", "free", "crop", "trim"])
        if action == "new" or not known:
            model.sequences[pool.new_sequence()] = {layer: [] for layer in layers}
        elif action == "step":
            rows = chance.sample(known, chance.randint(1, min(3, len(known))))
            counts = [chance.choice([0, 1, 1, 1, 7, 64, 90]) for _ in rows]
            refusals += run_step(pool, model, rows, counts)
        elif action == "fork" and len(known) < 8:
            source = chance.choice(known)
            model.copy(source, pool.fork(source))
        elif action == "free":
            pool.free(sequence := chance.choice(known))
            del model.sequences[sequence]
        elif action == "crop":
            sequence = chance.choice(known)
            length = chance.randint(0, pool.length(0, sequence) + 3)
            pool.crop(sequence, length)
            model.sequences[sequence] = {layer: t[:length] for layer, t in model.sequences[sequence].items()}
        elif action == "trim":
            pool.trim()
        check(pool, model)
    assert (refusals > 0) == (pool.budget_bytes is not None)
    for sequence in model.sequences:
        pool.free(sequence)
    pool.trim()
    assert pool.used_bytes == pool.allocated_bytes == 0


def run_step(pool, model, rows, counts):
    """One step over all layers; 1 when the pool refused it, which must leave everything as it was."""
    before = [pool.length(0, row) for row in rows]
    for layer in model.layers:
        keys, values = fresh(sum(counts))
        try:
            pool.append_packed(layer, rows, counts, keys, values)
        except BudgetError:
            check(pool, model)
            for row, length in zip(rows, before, strict=True):
                pool.crop(row, length)
                model.sequences[row] = {k: t[:length] for k, t in model.sequences[row].items()}
            return 1
        tokens = iter(zip(keys, values, strict=True))
        for row, count in zip(rows, counts, strict=True):
            model.sequences[row][layer] += [next(tokens) for _ in range(count)]
    return 0
