"""Stores whose memory is shared out anew: the bits stay, those who matter most stay, refusals change nothing."""

import random
import resource
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from ktitan.errors import BudgetError, HardwareError, UnsupportedError
from ktitan.native import ExpertBank, experts, linear, native_reason, stream_experts, stream_linear
from ktitan.native.store import StoreSizes
from ktitan.tiers.options import parse_cache
from ktitan.tiers.reference.cycle import count_pinned
from ktitan.tiers.store import TierStore

from support.packed_matrices import packed_matrix
from support.stored_weights import StoredWeights

LAYERS, EXPERTS, HIDDEN, DENSE = 3, 9, 256, 5
MIB = 1 << 20

pytestmark = pytest.mark.skipif(native_reason() is not None, reason=f"native library {native_reason()}")


@pytest.fixture
def choose():
    seed = time.time_ns()
    print(f"seed {seed}")
    return random.Random(seed)


class Rig:
    """Layers of experts of two sizes and dense layers in a store, with what they compute in memory."""

    def __init__(self, folder, choose, cache="policy=lru", dense=DENSE):
        self.choose, self.store, self.cache = choose, TierStore(), cache
        stored = self.stored = StoredWeights(folder / "weights.bin", np.random.default_rng(choose.getrandbits(32)))
        self.banks, self.layers, self.dense = [], [], []
        for n in range(LAYERS):
            rows = HIDDEN * (1 + n % 2)
            gate, up = (packed_matrix("q8_0", EXPERTS * rows, HIDDEN, stored.rng)[0] for _ in range(2))
            down = packed_matrix("q8_0", EXPERTS * HIDDEN, rows, stored.rng)[0]
            self.banks.append(ExpertBank(EXPERTS, gate, up, down, activation="silu"))
            self.layers.append(self.store.add_experts(f"layer{n}", *stored.experts(self.banks[-1])))
        for n in range(dense):
            matrix = packed_matrix("q8_0", choose.randint(1, 6000), HIDDEN, stored.rng)[0]
            self.dense.append((self.store.add_matrix(f"dense{n}", *stored.matrix(matrix)), matrix))
        self.least, self.most = self.store.need.least_bytes, self.store.need.all_bytes

    def open(self, cache_bytes=None):
        cache_bytes = self.choose.randint(self.least, self.most) if cache_bytes is None else cache_bytes
        mode, options = self.choose.choice(["auto", "threads"]), parse_cache(self.cache)
        self.stored.open(self.store, cache_bytes, io=mode, options=options)
        return self

    def use(self):
        """One pass over everything, each result that of weights in memory."""
        x = torch.randn(2, HIDDEN)
        for bank, layer in zip(self.banks, self.layers, strict=True):
            index = torch.tensor([self.choose.sample(range(EXPERTS), 3) for _ in range(2)])
            weights = torch.rand(2, 3)
            assert torch.equal(
                stream_experts(x, index, weights, layer, "int8"), experts(x, index, weights, bank, "int8")
            )
        for stream, matrix in self.dense:
            assert torch.equal(stream_linear(x, stream, None, "int8"), linear(x, matrix, None, "int8"))

    def sizes(self):
        return self.choose.randint(self.store.least_bytes, self.most + 9 * MIB)


def ask(layer, wanted):
    index = torch.tensor([list(wanted)])
    stream_experts(torch.ones(1, HIDDEN), index, torch.ones(index.shape), layer, "int8")


def of_this_process(field):
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in status if line.startswith(f"{field}:"))


@pytest.fixture
def rig(tmp_path, choose):
    made = Rig(tmp_path, choose, choose.choice(["policy=lru", "policy=admitting", "scope=global", "scope=layer", ""]))
    yield made.open()
    made.store.close()


def test_bits_through_many_sizes(rig):
    for _ in range(40):
        for _ in range(rig.choose.randrange(3)):
            rig.use()
        wanted = rig.sizes()
        rig.store.resize(wanted)
        stats = rig.store.stats()
        assert stats["resident_bytes"] <= stats["arena_bytes"] <= min(wanted, rig.most)
        assert stats["filled_bytes"] <= stats["arena_bytes"]
    rig.use()
    stats = rig.store.stats()
    assert stats["hits"] + stats["misses"] == stats["demands"]


def test_all_that_fits_stays(rig):
    rig.store.resize(rig.most)
    for layer in rig.layers:
        ask(layer, range(EXPERTS))
    rig.use()
    misses = rig.store.stats()["misses"]
    for _ in range(3):
        rig.store.resize(rig.most + rig.choose.randrange(MIB))
        rig.use()
    assert rig.store.stats()["misses"] == misses


def test_those_acquired_last_stay(tmp_path, choose):
    rig = Rig(tmp_path, choose, "policy=lru,scope=layer,prefetch=off").open()
    rig.store.resize(rig.most)
    order = [choose.sample(range(EXPERTS), EXPERTS) for _ in rig.layers]
    for layer, some in zip(rig.layers, order, strict=True):
        for expert in some:
            ask(layer, [expert])
    rig.store.resize(choose.randint(rig.store.least_bytes, rig.most))
    share = rig.store._shares
    for number, (layer, some) in enumerate(zip(rig.layers, order, strict=True)):
        slots = share.domain_slots[share.domain_of[number * EXPERTS]]
        before = rig.store.stats()
        ask(layer, some[EXPERTS - slots :])
        assert rig.store.stats()["hits"] - before["hits"] == slots > 0
    rig.store.close()


def test_the_dense_records_at_the_beginning_stay(tmp_path, choose):
    rig = Rig(tmp_path, choose).open()
    rig.store.resize(rig.most)
    rig.use()
    rig.store.resize(choose.randint(rig.store.least_bytes, rig.most))
    sizes = [
        record.slot_bytes for record, layer in zip(rig.store._records, rig.store._layers, strict=True) if layer < 0
    ]
    before = rig.store.stats()["hits"]
    for stream, _ in rig.dense:
        stream_linear(torch.randn(1, HIDDEN), stream, None, "int8")
    assert rig.store.stats()["hits"] - before == count_pinned(sizes, rig.store._shares.cycle_bytes)
    rig.store.close()


def test_a_store_that_was_opened_small_grows(rig):
    rig.store.resize(rig.store.least_bytes)
    rig.use()
    rig.store.resize(rig.most)
    assert rig.store.stats()["arena_bytes"] == rig.most
    for layer in rig.layers:
        ask(layer, range(EXPERTS))
    rig.use()
    misses = rig.store.stats()["misses"]
    rig.use()
    assert rig.store.stats()["misses"] == misses


def test_too_little_is_refused_and_changes_nothing(rig):
    rig.use()
    before, shares = rig.store.stats(), rig.store._shares
    with pytest.raises(BudgetError, match="raise the ram budget"):
        rig.store.resize(rig.store.least_bytes - 1)
    assert rig.store.stats()["arena_bytes"] == before["arena_bytes"] and rig.store._shares is shares
    rig.store.resize(rig.store.least_bytes)
    rig.use()


def test_sizes_that_contradict_each_other_change_nothing(rig):
    rig.use()
    rig.store.resize(rig.most)
    rig.use()
    before = rig.store.stats()
    good = rig.store._shares
    pools = tuple((pool.slot_bytes, pool.slots, pool.spares) for pool in good.pools)
    few = tuple((size, 1, 0) for size, *_ in pools)
    none = tuple((size, 0, 0) for size, *_ in pools)
    many = tuple((size, 1 << 61, 0) for size, *_ in pools)
    wrong = [
        StoreSizes(few, tuple(slots + 1 for slots in good.domain_slots), good.cycle_bytes),
        StoreSizes(none, good.domain_slots, good.cycle_bytes),
        StoreSizes(pools, good.domain_slots, 0),
        StoreSizes(pools, tuple(0 for _ in good.domain_slots), good.cycle_bytes),
        StoreSizes(many, good.domain_slots, good.cycle_bytes),
    ]
    for sizes in wrong:
        with pytest.raises((HardwareError, BudgetError)):
            rig.store._native.resize(sizes)
    assert rig.store.stats()["arena_bytes"] == before["arena_bytes"]
    misses = before["misses"]
    for bank in rig.layers:
        ask(bank, [0])
    rig.use()
    assert rig.store.stats()["resident_bytes"] >= before["resident_bytes"] and rig.store.stats()["misses"] >= misses


def test_without_memory_nothing_changes(rig):
    """RLIMIT_DATA counts what may be written, as the kernel does where it overcommits nothing."""
    rig.store.resize(rig.store.least_bytes)
    rig.use()
    before, shares = rig.store.stats(), rig.store._shares
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (of_this_process("VmData") + MIB, limits[1]))
    try:
        with pytest.raises(BudgetError, match="no memory"):
            rig.store.resize(rig.most)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, limits)
    assert rig.store._shares is shares and rig.store.stats()["arena_bytes"] == before["arena_bytes"]
    rig.use()
    rig.store.resize(rig.most)
    rig.use()


def test_where_addresses_are_few_a_store_opens_all_the_same(tmp_path, choose):
    rig = Rig(tmp_path, choose, dense=60)
    room = rig.least + 12 * MIB
    assert rig.most > room + 8 * MIB
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (of_this_process("VmSize") + room, limits[1]))
    try:
        rig.open(rig.least)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    rig.use()
    with pytest.raises(BudgetError, match="no memory"):
        rig.store.resize(rig.most)
    rig.use()
    rig.store.close()


def test_a_closed_store_is_refused(rig):
    rig.store.close()
    with pytest.raises(UnsupportedError):
        rig.store.resize(rig.most)


def test_calls_and_changes_from_two_threads(rig):
    ends, failed = threading.Event(), []

    def change():
        choose = random.Random(rig.choose.random())
        try:
            while not ends.is_set():
                rig.store.resize(choose.randint(rig.store.least_bytes, rig.most))
                rig.store.stats()
        except Exception as error:  # noqa: BLE001 - of another thread, for the assertion below
            failed.append(error)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(20):
            rig.use()
    finally:
        ends.set()
        thread.join()
    assert not failed
