"""Products with weights out of a store: the bits of those with weights in memory, at every size of the cache."""

import copy
import os
import pickle
import threading

import numpy as np
import pytest
import torch

from ktitan.errors import IoError, UnsupportedError
from ktitan.native import ExpertBank, embedding, experts, linear, stream_experts, stream_linear, stream_rows

from support.packed_matrices import packed_matrix
from support.stored_weights import StoredWeights, new_store, shape_of

E, H, I = 7, 256, 512  # noqa: E741
OPTIONS = [{"io": "auto"}, {"io": "threads"}, {"io": "auto", "direct": False}, {"io": "auto", "depth": 1}]


def make_bank(rng, formats=("q4_k", "q6_k", "q8_0"), biases=False):
    sizes = [("gate", I, H), ("up", I, H), ("down", H, I)]
    matrices = {
        name: None if format is None else packed_matrix(format, E * rows, columns, rng)[0]
        for (name, rows, columns), format in zip(sizes, formats, strict=True)
    }
    bias = {
        f"{name}_bias": torch.from_numpy(rng.standard_normal((E, rows)).astype(np.float32))
        for name, rows, _ in sizes
        if biases and matrices[name] is not None
    }
    return ExpertBank(E, **matrices, activation="silu", **bias)


def demand(rng, tokens, slots=3):
    hidden = torch.from_numpy(rng.standard_normal((tokens, H)).astype(np.float32))
    index = torch.from_numpy(rng.integers(0, E + 1, (tokens, slots)))
    return hidden, index, torch.from_numpy(rng.random((tokens, slots), dtype=np.float32))


@pytest.fixture
def stored(tmp_path, rng):
    return StoredWeights(tmp_path / "weights.bin", rng)


@pytest.fixture
def store(native):
    made = new_store()
    yield made
    made.close()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 1.0])
def test_experts_have_the_bits_of_resident_ones(stored, store, rng, share, options):
    banks = [
        make_bank(rng),
        make_bank(rng, ("q4_0", "q4_0", "q5_1"), biases=True),
        make_bank(rng, (None, "f32", "bf16")),
    ]
    streams = [store.add_experts(f"layer{n}", *stored.experts(bank)) for n, bank in enumerate(banks)]
    need = store.need
    stored.open(store, int(need.least_bytes + share * (need.all_bytes - need.least_bytes)), **options)
    for tokens in (1, 1, 2, 40, 1, 600, 1):
        for bank, stream in zip(banks, streams, strict=True):
            inputs = demand(rng, tokens)
            got = stream_experts(*inputs, stream, "int8")
            assert torch.equal(got, experts(*inputs, bank, "int8"))
    stats = store.stats()
    assert stats["hits"] + stats["misses"] == stats["demands"] > 0
    if share == 1:
        assert stats["evictions"] == 0 and stats["misses"] <= 3 * E
    else:
        assert stats["evictions"] > 0


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_dense_layers_have_the_bits_of_resident_ones_in_any_order(stored, store, rng, share, options):
    matrices = [packed_matrix("q4_k", int(rng.integers(1, 700)), 256, rng)[0] for _ in range(12)]
    streams = [store.add_matrix(f"{n}", *stored.matrix(matrix)) for n, matrix in enumerate(matrices)]
    need = store.need
    stored.open(store, int(need.least_bytes + share * (need.all_bytes - need.least_bytes)), **options)
    order = [*range(12), *range(12), *rng.integers(0, 12, 40).tolist(), *range(12)]
    for number in order:
        x = torch.from_numpy(rng.standard_normal((int(rng.integers(1, 5)), 256)).astype(np.float32))
        got = stream_linear(x, streams[number], None, "int8")
        assert torch.equal(got, linear(x, matrices[number], None, "int8"))
    stats = store.stats()
    assert stats["demands"] == len(order) and stats["hits"] + stats["misses"] == len(order)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_rows_of_a_table(stored, store, rng, options):
    matrix = packed_matrix("q6_k", 1000, 512, rng)[0]
    table = store.add_table("embed", [stored.put(matrix.data.tobytes())], shape_of(matrix))
    stored.open(store, store.need.all_bytes, **options)
    for shape in [(1,), (3, 5), (700,), (0,)]:
        ids = torch.from_numpy(rng.integers(0, 1000, shape))
        assert torch.equal(stream_rows(ids, table, torch.bfloat16), embedding(ids, matrix, torch.bfloat16))
    ends = torch.tensor([0, 999, 999, 0])
    assert torch.equal(stream_rows(ends, table, torch.float32), embedding(ends, matrix, torch.float32))
    with pytest.raises(UnsupportedError, match="row 1000"):
        stream_rows(torch.tensor([1000]), table, torch.float32)


def test_a_cut_file_fails_that_call_and_the_next_one_works(stored, store, rng):
    bank = make_bank(rng)
    stream = store.add_experts("layer", *stored.experts(bank))
    whole = stored.path.read_bytes()
    stored.open(store, store.need.least_bytes)
    inputs = demand(rng, 20)
    expected = experts(*inputs, bank, "int8")
    assert torch.equal(stream_experts(*inputs, stream, "int8"), expected)
    status = os.stat(stored.path)
    os.truncate(stored.path, 5000)
    with pytest.raises(IoError, match=r"weights\.bin"):
        stream_experts(*inputs, stream, "int8")
    with stored.path.open("r+b") as file:
        file.write(whole)
    os.utime(stored.path, ns=(status.st_atime_ns, status.st_mtime_ns))
    for _ in range(3):
        assert torch.equal(stream_experts(*inputs, stream, "int8"), expected)


def test_a_rewritten_file_is_refused(stored, store, rng):
    bank = make_bank(rng)
    stream = store.add_experts("layer", *stored.experts(bank))
    stored.open(store, store.need.least_bytes)
    stored.path.write_bytes(stored.path.read_bytes())
    with pytest.raises(IoError, match="changed since its header was read"):
        stream_experts(*demand(rng, 2), stream, "int8")


def test_copies_share_the_store_and_pickles_are_refused(stored, store, rng):
    stream = store.add_experts("layer", *stored.experts(make_bank(rng)))
    with pytest.raises(UnsupportedError, match="not open"):
        stream_experts(*demand(rng, 1), stream, "int8")
    stored.open(store, store.need.all_bytes)
    inputs = demand(rng, 4)
    assert torch.equal(stream_experts(*inputs, copy.deepcopy(stream), "int8"), stream_experts(*inputs, stream, "int8"))
    with pytest.raises(UnsupportedError, match="pickled"):
        pickle.dumps(stream.store)
    store.close()
    store.close()
    with pytest.raises(UnsupportedError, match="closed"):
        stream_experts(*inputs, stream, "int8")


def test_closing_waits_for_calls_of_other_threads_only(stored, store, rng):
    stream = store.add_experts("layer", *stored.experts(make_bank(rng)))
    stored.open(store, store.need.all_bytes)
    inside, leave = threading.Event(), threading.Event()

    def call():
        with stream.store.opened():
            inside.set()
            leave.wait(30)

    threads = [threading.Thread(target=call, daemon=True), threading.Thread(target=store.close, daemon=True)]
    threads[0].start()
    assert inside.wait(30)
    threads[1].start()
    threads[1].join(0.05)
    assert threads[1].is_alive()
    leave.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert store.stats()["arena_bytes"] == 0
    with pytest.raises(UnsupportedError, match="closed"):
        stream_experts(*demand(rng, 1), stream, "int8")


def test_a_signal_handler_may_close_in_the_middle_of_its_own_call(stored, store, rng):
    stream = store.add_experts("layer", *stored.experts(make_bank(rng)))
    stored.open(store, store.need.all_bytes)
    with stream.store.opened():
        store.close()
    assert store.stats()["arena_bytes"] == 0


def test_a_wrong_index_is_named_and_reads_nothing(stored, store, rng):
    stream = store.add_experts("layer", *stored.experts(make_bank(rng)))
    stored.open(store, store.need.all_bytes)
    hidden, index, weights = demand(rng, 3)
    index[1, 1] = E + 1
    with pytest.raises(UnsupportedError, match=f"index {E + 1}"):
        stream_experts(hidden, index, weights, stream, "int8")
    assert store.stats()["demands"] == 0
