"""What the store counts while it streams, against the reference store on the same demands."""

import random
import time

import pytest
import torch

from ktitan.native import ExpertBank, experts, native_reason, stream_experts, stream_linear
from ktitan.tiers.reference import ReferenceStore
from ktitan.tiers.store import TierStore

from support.packed_matrices import packed_matrix
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


def opened(stored, store, choose):
    """Layers of equal experts, and how many of them the store has room for."""
    matrices = [packed_matrix("q8_0", EXPERTS * HIDDEN, HIDDEN, stored.rng)[0] for _ in range(3)]
    bank = ExpertBank(EXPERTS, *matrices, activation="silu")
    layers = [store.add_experts(f"layer{n}", *stored.experts(bank)) for n in range(LAYERS)]
    need = store.need
    stored.open(store, choose.randint(need.least_bytes, need.all_bytes), io="threads")
    pools = store._shares.pools
    classes = {size: n for n, (size, _) in enumerate(pools)}
    fitting = [min(size for size in classes if size >= record.slot_bytes) for record in store._records]
    return layers, ReferenceStore([classes[size] for size in fitting], fitting, [slots for _, slots in pools])


def call(layer, experts, tokens=1):
    index = torch.tensor([experts] * tokens)
    weights = torch.ones(index.shape)
    stream_experts(torch.ones(tokens, HIDDEN), index, weights, layer, "int8")


def counted(stats, *names):
    return {name: stats[name] for name in names or ("demands", "hits", "misses", "evictions", "waves")}


def test_counters_of_calls_whose_experts_have_a_place_at_once(stored, store, choose):
    layers, reference = opened(stored, store, choose)
    most = min(reference.residency.free(pool) for pool in range(len(store._shares.pools)))
    for _ in range(100):
        layer = choose.randrange(LAYERS)
        experts = choose.sample(range(EXPERTS), choose.randint(1, min(most, EXPERTS)))
        call(layers[layer], experts, choose.randint(1, 3))
        reference.demand(layer * EXPERTS + expert for expert in sorted(experts))
        stats = store.stats()
        assert counted(stats) == counted(vars(reference.counters))


def test_counters_of_calls_that_want_more_than_there_is_room_for(stored, store, choose):
    layers, reference = opened(stored, store, choose)
    for _ in range(60):
        layer = choose.randrange(LAYERS)
        experts = choose.sample(range(EXPERTS), choose.randint(1, EXPERTS))
        call(layers[layer], experts, choose.randint(1, 3))
        reference.demand(layer * EXPERTS + expert for expert in sorted(experts))
        assert counted(store.stats()) == counted(vars(reference.counters))


def test_of_dense_layers_only_what_stays_is_hit(stored, store, choose):
    sizes = [choose.randint(1, 300) for _ in range(12)]
    matrices = [packed_matrix("q8_0", rows, HIDDEN, stored.rng)[0] for rows in sizes]
    layers = [store.add_matrix(f"{n}", *stored.matrix(matrix)) for n, matrix in enumerate(matrices)]
    need = store.need
    stored.open(store, choose.randint(need.least_bytes, need.all_bytes), io="threads")
    slots = [record.slot_bytes for record in store._records]
    reference = ReferenceStore([-1] * 12, slots, [], store._shares.cycle_bytes)
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
