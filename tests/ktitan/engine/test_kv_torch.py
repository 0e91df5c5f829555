import weakref

import torch

from ktitan.context import KVLayerSpec
from ktitan.engine.kv_torch import TorchKVPool

from support.kv_pools import TOKEN_BYTES, assert_holds, filled, fresh


def test_layers_have_their_own_dtypes():
    pool = TorchKVPool()
    sequence = pool.new_sequence()
    latent, rope = torch.randn(70, 1, 16).bfloat16(), torch.randn(70, 1, 4).bfloat16()
    pool.append(3, sequence, *(plain := fresh(70)))
    pool.append(1, sequence, latent, rope)
    assert_holds(pool, 3, sequence, *plain)
    assert_holds(pool, 1, sequence, latent, rope)
    assert list(pool.layers()) == [1, 3]
    assert pool.spec(1) == KVLayerSpec(1, 16, 1, 4, torch.bfloat16, torch.device("cpu"))
    assert pool.length(2, sequence) == 0
    assert pool.used_bytes == 2 * 64 * (TOKEN_BYTES + 20 * 2)


def test_an_undisturbed_sequence_is_read_as_a_view():
    pool = TorchKVPool()
    sequence, _ = filled(pool, 65)
    for _ in range(300):
        pool.append(0, sequence, *fresh(1))
    keys, values = pool.gather(0, sequence)
    first_keys, first_values = next(pool.pages(0, sequence))
    assert keys.data_ptr() == first_keys.data_ptr() and values.data_ptr() == first_values.data_ptr()


def test_a_sequence_grows_into_the_neighbouring_page():
    pool = TorchKVPool()
    first, second, third = (filled(pool, 64)[0] for _ in range(3))
    pool.free(first)
    pool.append(0, third, *fresh(1))
    assert pool.table(third) == (2, 3)
    pool.append(0, second, *fresh(1))
    assert pool.table(second) == (1, 0)


def test_trimmed_chunks_are_not_kept_alive():
    pool = TorchKVPool()
    sequence, _ = filled(pool, 100)
    pool.gather(0, sequence)
    chunk = weakref.ref(pool._store.layers[0].keys[0])
    pool.free(sequence)
    assert pool.trim() > 0 and chunk() is None
