"""What the store counts while it streams, against the reference store on the same demands."""

import random
import time

import pytest
import torch

from ktitan.native import ExpertBank, experts, native_reason, stream_experts, stream_linear
from ktitan.tiers.options import CHOICES, CacheOptions
from ktitan.tiers.store import TierStore

from support.packed_matrices import packed_matrix
from support.reference_stores import reference_of
from support.stored_weights import StoredWeights

np = pytest.importorskip("numpy")
LAYERS, EXPERTS, HIDDEN = 3, 9, 32

pytestmark = pytest.mark.skipif(native_reason() is not None, reason=f"native library {native_reason()}")


@pytest.fixture
def choose():
    seed = time.time_ns()
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.fixture
def store():
    made = TierStore()
    yield made
    made.close()


@pytest.fixture
def stored(tmp_path, choose):
    return StoredWeights(tmp_path / "weights.bin", np.random.default_rng(choose.getrandbits(32)))


PLAIN = CacheOptions("lru", prefetch="off")


def opened(stored, store, choose, options=PLAIN, least=0.0):
    """Layers of equal experts, and how many of them the store has room for: at least this share."""
    matrices = [packed_matrix("q8_0", EXPERTS * HIDDEN, HIDDEN, stored.rng)[0] for _ in range(3)]
    bank = ExpertBank(EXPERTS, *matrices, activation="silu")
    layers = [store.add_experts(f"layer{n}", *stored.experts(bank)) for n in range(LAYERS)]
    need = store.need
    least = max(need.least_bytes, int(least * need.all_bytes))
    stored.open(store, choose.randint(least, need.all_bytes), io="threads", options=options)
    return layers, reference_of(store, options)


def call(layers, reference, layer, experts, tokens=1):
    """The same experts of a layer for all tokens, in both."""
    index = torch.tensor([experts] * tokens)
    stream_experts(torch.ones(tokens, HIDDEN), index, torch.ones(index.shape), layers[layer], "int8")
    records = [layer * EXPERTS + expert for expert in sorted(experts)]
    reference.begin(layer * EXPERTS, tokens)
    reference.demand(records, tokens=[tokens] * len(records))


COUNTED = (
    *("demands", "hits", "misses", "evictions", "waves", "steps", "tokens", "sequences"),
    *("passed", "policy", "policy_changes"),
)


def counted(stats, *names):
    return {name: stats[name] for name in names or COUNTED}


def test_counters_of_calls_whose_experts_have_a_place_at_once(stored, store, choose):
    layers, reference = opened(stored, store, choose)
    most = min(reference.residency.free(pool) for pool in range(len(store._shares.pools)))
    for _ in range(100):
        experts = choose.sample(range(EXPERTS), choose.randint(1, min(most, EXPERTS)))
        call(layers, reference, choose.randrange(LAYERS), experts, choose.randint(1, 3))
        assert counted(store.stats()) == counted(vars(reference.counters))


@pytest.mark.parametrize("policy", CHOICES["policy"])
@pytest.mark.parametrize("scope", CHOICES["scope"])
def test_counters_of_calls_that_want_more_than_there_is_room_for(stored, store, choose, policy, scope):
    layers, reference = opened(stored, store, choose, CacheOptions(policy, scope, "off"))
    favourites = [choose.sample(range(EXPERTS), 3) for _ in range(LAYERS)]
    for _ in range(60):
        layer, tokens = choose.randrange(LAYERS), choose.choice([1, 1, 3, 12])
        some = choose.sample(range(EXPERTS), choose.randint(1, EXPERTS))
        call(layers, reference, layer, choose.choice([favourites[layer], some]), tokens)
        assert counted(store.stats()) == counted(vars(reference.counters))


@pytest.mark.parametrize("policy", CHOICES["policy"])
def test_counters_of_prompts_whose_experts_have_some_tokens_each(stored, store, choose, policy):
    layers, reference = opened(stored, store, choose, CacheOptions(policy, "layer", "off"))
    for _ in range(30):
        for number, layer in enumerate(layers):
            index = torch.tensor([choose.sample(range(EXPERTS), choose.choice([2, 5])) for _ in range(1)] * 12)
            index[6:] = torch.randint(EXPERTS, (6, 1))
            stream_experts(torch.ones(12, HIDDEN), index, torch.ones(index.shape), layer, "int8")
            experts, tokens = index.unique(return_counts=True)
            reference.begin(number * EXPERTS, 12)
            reference.demand([number * EXPERTS + int(e) for e in experts], tokens=tokens.tolist())
            assert counted(store.stats()) == counted(vars(reference.counters))


def test_the_policy_follows_what_is_measured(stored, store, choose):
    """Favourites beside a stream of others: frequency keeps them, and both stores find out at the same call."""
    layers, reference = opened(stored, store, choose, CacheOptions(prefetch="off"), least=0.4)
    policies = set()
    for turn in range(900):
        for layer in range(LAYERS):
            strangers = choose.sample(range(3, EXPERTS), 2)
            call(layers, reference, layer, [turn % 3, *strangers] if turn < 500 else choose.sample(range(EXPERTS), 2))
        assert counted(store.stats()) == counted(vars(reference.counters))
        policies.add(store.stats()["policy"])
    assert policies - {0}


def test_nothing_is_chosen_where_every_record_has_a_slot(stored, store, choose):
    layers, reference = opened(stored, store, choose, CacheOptions(prefetch="off"), least=1.0)
    for _ in range(600):
        call(layers, reference, choose.randrange(LAYERS), choose.sample(range(EXPERTS), 4))
    assert counted(store.stats()) == counted(vars(reference.counters))
    assert reference.counters.policy_changes == reference.counters.policy == 0


def test_of_dense_layers_only_what_stays_is_hit(stored, store, choose):
    sizes = [choose.randint(1, 300) for _ in range(12)]
    matrices = [packed_matrix("q8_0", rows, HIDDEN, stored.rng)[0] for rows in sizes]
    layers = [store.add_matrix(f"{n}", *stored.matrix(matrix)) for n, matrix in enumerate(matrices)]
    need = store.need
    stored.open(store, choose.randint(need.least_bytes, need.all_bytes), io="threads")
    reference = reference_of(store, CacheOptions("lru"))
    before = {}
    for turn in range(3):
        for number, layer in enumerate(layers):
            stream_linear(torch.ones(1, HIDDEN), layer, None, "int8")
            reference.use(number)
        if turn == 0:  # what stays may be still on its way in the first one
            before = counted(store.stats(), "hits"), counted(vars(reference.counters), "hits")
    got, expected = store.stats()["hits"] - before[0]["hits"], reference.counters.hits - before[1]["hits"]
    assert got == expected == 2 * reference.cycle.pinned


def test_the_cache_gets_its_pages_in_the_background_while_reads_fill_it(stored, store, choose):
    matrices = [packed_matrix("q8_0", EXPERTS * HIDDEN, HIDDEN, stored.rng)[0] for _ in range(3)]
    bank = ExpertBank(EXPERTS, *matrices, activation="silu")
    layer = store.add_experts("layer", *stored.experts(bank))
    stored.open(store, store.need.all_bytes)
    hidden, weights = torch.rand(EXPERTS, HIDDEN), torch.ones(EXPERTS, 1)
    index = torch.arange(EXPERTS)[:, None]
    expected = experts(hidden, index, weights, bank, "int8")
    deadline = time.monotonic() + 20
    while True:
        assert torch.equal(stream_experts(hidden, index, weights, layer, "int8"), expected)
        stats = store.stats()
        if stats["filled_bytes"] == stats["arena_bytes"] > 0:
            break
        assert time.monotonic() < deadline
        store.drop()
