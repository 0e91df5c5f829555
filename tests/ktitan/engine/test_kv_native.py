import gc
import random
import threading
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from ktitan.context import KVAllowance, KVLayerSpec
from ktitan.engine.kv_choice import pool_maker
from ktitan.engine.kv_native import NativeKVPool
from ktitan.engine.kv_torch import TorchKVPool
from ktitan.errors import BudgetError, UnsupportedError
from ktitan.native import native_reason
from ktitan.native.library import use_isa

from support.kv_pools import KEY, PAGE_BYTES, VALUE, assert_holds, filled, fresh

pytestmark = pytest.mark.skipif(native_reason() is not None, reason="no native library")

WIDE = ((2, 64), (1, 32))


def q8(numbers):
    """What gguf's Q8_0 makes of each 32 numbers."""
    packed = gguf.quants.quantize(numbers.numpy().reshape(-1, 32), gguf.GGMLQuantizationType.Q8_0)
    again = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q8_0)
    return torch.from_numpy(again).reshape(numbers.shape)


ROUNDED = {"f32": lambda x: x, "bf16": lambda x: x.bfloat16().float(), "q8": q8}


def hard_numbers(tokens):
    """Blocks of many sizes, with zeros, halves between two steps, and numbers that only just have a scale."""
    parts = []
    for heads, width in WIDE:
        x = torch.randn(tokens, heads, width) * torch.exp2(torch.randint(-30, 12, (tokens, heads, 1)))
        x[::7] = 0
        x[1::11] = torch.randint(-127, 128, (heads, width)) / 2
        x[1::11, :, ::32] = 63.5
        parts.append(x)
    return tuple(parts)


@pytest.mark.parametrize("isa", ["generic", "avx512"])
@pytest.mark.parametrize("format", ROUNDED)
def test_pages_hold_each_number_rounded(format, isa):
    pool = NativeKVPool(format=format)
    sequence = pool.new_sequence()
    stored = [hard_numbers(tokens) for tokens in (63, 1, 130, 5)]
    with use_isa(isa):
        for part in stored:
            pool.append(3, sequence, *part)
        expected = [ROUNDED[format](torch.cat(parts)) for parts in zip(*stored, strict=True)]
        assert_holds(pool, 3, sequence, *expected)
    spec = pool.spec(3)
    assert spec == KVLayerSpec(2, 64, 1, 32, torch.float32, torch.device("cpu"), format)
    row_bytes = {"f32": 4 * 160, "bf16": 2 * 160, "q8": 5 * 34}[format]
    assert spec.token_bytes == row_bytes and pool.used_bytes == pool.held_bytes == 4 * 64 * row_bytes
    assert pool.is_exact == (format == "f32")


@pytest.mark.parametrize("format", ROUNDED)
def test_numbers_that_are_not_finite_are_seen(format):
    pool = NativeKVPool(format=format)
    sequence = pool.new_sequence()
    keys, values = torch.randn(3, 2, 64), torch.randn(3, 1, 32)
    keys[1, 0, 3], values[2, 0, 31] = float("nan"), float("inf")
    pool.append(0, sequence, keys, values)
    got_keys, got_values = pool.gather(0, sequence)
    assert got_keys[1, 0, 3].isnan() and not got_values[2].isfinite().all()
    assert got_keys[0].isfinite().all() and got_keys[1, 1].isfinite().all() and got_values[:2].isfinite().all()


class Twins:
    """A torch pool and a native one that get the same calls; `rows` pairs their sequences."""

    layers = (0, 5)

    def __init__(self, seed, limit):
        self.chance = random.Random(seed)
        self.pools = TorchKVPool(limit), NativeKVPool(limit)
        self.rows = []
        self.refusals = 0
        first = self.both(lambda pool: pool.new_sequence())
        for layer in self.layers:
            self.both(lambda pool, row, layer=layer: pool.append(layer, row, *fresh(0)), first)
        self.both(lambda pool, row: pool.free(row), first)

    def both(self, call, *per_pool):
        """What `call` gives for each pool, with that pool's share of each argument."""
        return tuple(call(pool, *(given[i] for given in per_pool)) for i, pool in enumerate(self.pools))

    def new(self):
        self.rows.append(self.both(lambda pool: pool.new_sequence()))

    def fork(self):
        if len(self.rows) < 10:
            self.rows.append(self.both(lambda pool, row: pool.fork(row), self.chance.choice(self.rows)))

    def free(self):
        self.both(lambda pool, row: pool.free(row), self.rows.pop(self.chance.randrange(len(self.rows))))

    def crop(self):
        row = self.chance.choice(self.rows)
        length = self.chance.randint(0, self.pools[0].length(0, row[0]) + 3)
        self.both(lambda pool, row: pool.crop(row, length), row)

    def trim(self):
        self.both(lambda pool: pool.trim())
        assert self.pools[1].allocated_bytes == self.pools[1].used_bytes

    def reserve(self):
        self.refused(lambda pool, rows, counts: pool.reserve(rows, counts), *self.some())

    def step(self):
        rows, counts = self.some()
        for layer in self.layers:
            states = fresh(sum(counts[0]))
            if self.refused(
                lambda pool, rows, counts: pool.append_packed(layer, rows, counts, *states),  # noqa: B023 - at once
                rows,
                counts,
            ):
                break

    def some(self):
        """Rows of each pool and tokens for them."""
        rows = self.chance.sample(self.rows, self.chance.randint(1, min(4, len(self.rows))))
        counts = [self.chance.choice([0, 1, 1, 3, 64, 100]) for _ in rows]
        return tuple(zip(*rows, strict=True)), (counts, counts)

    def refused(self, call, *per_pool):
        """Whether both pools refuse: they must agree."""

        def is_refused(pool, *arguments):
            try:
                call(pool, *arguments)
            except BudgetError:
                return True
            return False

        first, second = self.both(is_refused, *per_pool)
        assert first == second
        self.refusals += first
        return first

    def compare(self):
        """Equal contents and lengths; equal bytes in use, so that each copy of a shared page is counted."""
        torch_pool, native = self.pools
        assert torch_pool.used_bytes == native.used_bytes <= native.allocated_bytes
        assert native.budget_bytes is None or native.allocated_bytes <= native.budget_bytes
        for one, other in self.rows:
            assert len(torch_pool.table(one)) == len(native.table(other))
            for layer in self.layers:
                assert torch_pool.length(layer, one) == native.length(layer, other)
                for a, b in zip(torch_pool.gather(layer, one), native.gather(layer, other), strict=True):
                    assert torch.equal(a, b)


@pytest.mark.parametrize("seed", range(4))
def test_random_operations_against_the_torch_pool(seed):
    limit = None if seed % 2 else 30 * PAGE_BYTES
    twins = Twins(seed, limit)
    for _ in range(300):
        action = twins.chance.choice(["new", "step", "step", "step", "reserve", "fork", "free", "crop", "trim"])
        getattr(twins, action if twins.rows else "new")()
        twins.compare()
    assert (twins.refusals > 0) == (limit is not None)


def test_any_free_page_goes_back_to_the_system():
    pool = NativeKVPool()
    shape = (128, 2, 256)  # a page of 256 KiB
    rows = [pool.new_sequence() for _ in range(40)]
    for row in rows:
        pool.append(0, row, torch.randn(shape), torch.randn(shape))
    page = pool.native.counts().page_bytes
    kept = {row: pool.gather(0, row) for row in rows[1::2]}
    for row in rows[::2]:
        pool.free(row)
    before = resident_bytes()
    assert pool.allocated_bytes == 80 * page and pool.held_bytes == 40 * page
    assert pool.trim() == 40 * page and pool.allocated_bytes == pool.used_bytes == 40 * page
    assert before - resident_bytes() > 38 * page
    for row, stored in kept.items():
        assert_holds(pool, 0, row, *stored)
    again = pool.new_sequence()  # what was given back is used again
    pool.append(0, again, *(stored := (torch.randn(shape), torch.randn(shape))))
    assert_holds(pool, 0, again, *stored)
    assert max(pool.table(again)) < 80
    before = resident_bytes()
    del pool
    gc.collect()
    assert before - resident_bytes() > 40 * page


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_a_lower_limit_takes_free_pages_at_the_next_step():
    allowance = KVAllowance(20 * PAGE_BYTES)
    pool = NativeKVPool(allowance)
    (one, stored), (other, _), (last, _) = filled(pool, 64), filled(pool, 640), filled(pool, 64)
    pool.free(other)
    allowance.limit_bytes = 3 * PAGE_BYTES
    assert pool.allocated_bytes == 12 * PAGE_BYTES
    pool.append(0, one, *(extra := fresh(1)))
    assert pool.allocated_bytes == 3 * PAGE_BYTES == allowance.held_bytes
    assert_holds(pool, 0, one, *(torch.cat(pair) for pair in zip(stored[0], extra, strict=True)))
    with pytest.raises(BudgetError, match=f"{PAGE_BYTES} more bytes are needed for 1 pages in 1 layers, 0 of"):
        pool.append(0, last, *fresh(1))


def test_pages_stay_where_they_are_while_the_pool_grows():
    pool = NativeKVPool()
    sequence, stored = filled(pool, 100)
    table = pool.table(sequence)
    filled(pool, 20_000)
    pool.append(1, sequence, *fresh(100))
    assert pool.table(sequence) == table
    assert_holds(pool, 0, sequence, *stored[0])


def test_threads_may_use_one_pool():
    pool, failed = NativeKVPool(), []

    def work(seed):
        chance = random.Random(seed)
        try:
            sequence, stored = filled(pool, 1)
            keys, values = stored[0]
            for _ in range(60):
                extra = fresh(chance.choice([1, 1, 70]))
                keys, values = torch.cat([keys, extra[0]]), torch.cat([values, extra[1]])
                fork = pool.fork(sequence)
                pool.append(0, sequence, *extra)
                pool.free(fork)
                if chance.random() < 0.1:
                    pool.trim()
                assert_holds(pool, 0, sequence, keys, values)
            pool.free(sequence)
        except Exception as error:  # noqa: BLE001 - of another thread, for the assertion below
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and pool.used_bytes == 0


def test_what_a_native_pool_cannot_hold_is_refused():
    with pytest.raises(UnsupportedError, match="choose f32, bf16, q8"):
        NativeKVPool(format="q4")
    pool = NativeKVPool(format="q8")
    sequence = pool.new_sequence()
    with pytest.raises(UnsupportedError, match="blocks of 32 numbers, and heads are 3 and 5 wide"):
        pool.append(0, sequence, *fresh(4))
    for layer, states in (
        (0, fresh(4, dtype=torch.bfloat16)),
        (-1, (torch.zeros(4, 1, 32), torch.zeros(4, 1, 32))),
        (1 << 16, (torch.zeros(4, 1, 32), torch.zeros(4, 1, 32))),
        (0, (torch.zeros(4, 1, 32, device="meta"), torch.zeros(4, 1, 32, device="meta"))),
        (0, (torch.zeros(4, 0, 32), torch.zeros(4, 0, 32))),
    ):
        with pytest.raises(UnsupportedError, match=f"layer {layer}"):
            pool.append(layer, sequence, *states)
    for tokens in (-1, 1 << 40):
        with pytest.raises(UnsupportedError, match=r"2\^31 tokens"):
            pool.reserve((sequence,), (tokens,))
    assert list(pool.layers()) == [] and pool.table(sequence) == ()
    pool.declare(0, KVLayerSpec(1, 32, 1, 64, torch.float32, torch.device("cpu")))
    with pytest.raises(UnsupportedError, match="layer 0"):
        pool.declare(0, KVLayerSpec(1, 32, 1, 32, torch.float32, torch.device("cpu")))
    assert pool.spec(0).format == "q8"


def test_the_pool_follows_what_the_model_computes_in():
    model = torch.nn.Linear(2, 2)
    assert type(pool_maker(model)(None)) is NativeKVPool and pool_maker(model, "q8")(None).format == "q8"
    assert pool_maker(model)(7).budget_bytes == 7
    with torch.autocast("cpu", torch.bfloat16):
        assert pool_maker(model) is TorchKVPool
    for other in (model.to(torch.bfloat16), model.to("meta")):
        assert pool_maker(other) is TorchKVPool
        with pytest.raises(UnsupportedError, match="float32 on the CPU"):
            pool_maker(other, "q8")


def test_views_and_other_strides_are_stored_by_their_numbers():
    pool = NativeKVPool()
    sequence = pool.new_sequence()
    keys, values = torch.randn(KEY[0], 7, KEY[1]).transpose(0, 1), torch.randn(7, VALUE[0], 2 * VALUE[1])[..., ::2]
    pool.append(0, sequence, keys, values)
    assert_holds(pool, 0, sequence, keys, values)
    assert np.array_equal(pool.gather(0, sequence)[0].numpy(), keys.numpy())
