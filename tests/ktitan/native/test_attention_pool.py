"""Attention on the pages of a native pool: the bits of attention on tensors, in every mix of sequences."""

from dataclasses import replace

import pytest
import torch

from ktitan.errors import UnsupportedError
from ktitan.native import library
from ktitan.native.attention import attend, attend_pool
from ktitan.native.library import ISAS, use_isa
from ktitan.native.pool import NativePool, PoolLayer

from support.attention_twin import normal, random_case
from support.contract_bits import same_bits

LAYER = 3
FORMATS = {"f32": 0, "bf16": 1, "q8": 2}


def filled(case, lengths, format="f32"):
    """A pool with sequences of these lengths, each the beginning of a row of the case; (pool, sequences)."""
    pool, what = NativePool(), case.what
    layer = PoolLayer(what.key_heads, what.key_dim, what.key_heads, what.value_dim, FORMATS[format])
    assert pool.declare(LAYER, layer, None)
    sequences = [pool.new_sequence() for _ in lengths]
    for row, (sequence, length) in enumerate(zip(sequences, lengths, strict=True)):
        keys, values = (x[row, :length].contiguous() for x in (case.key, case.value))
        assert pool.append(LAYER, [sequence], [length], (keys.data_ptr(), values.data_ptr()), None)
    return pool, sequences


def stored(pool, sequence, what, length):
    """What a layer holds of a sequence, as float32 tensors [1, S, Hk, D]."""
    keys, values = (
        torch.empty(1, length, what.key_heads, what.key_dim),
        torch.empty(1, length, what.key_heads, what.value_dim),
    )
    pool.read(LAYER, sequence, 0, length, keys.data_ptr(), values.data_ptr())
    return keys, values


@pytest.mark.parametrize("latent", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_pages_and_tensors_give_equal_bits(native, rng, two_threads, format, latent):
    lengths, tokens = (1, 64, 65, 300, 1500), (1, 3, 65, 1, 2)
    sizes = {"key_dim": 64, "value_dim": 32} if format == "q8" else {}
    case = random_case(
        rng, max(tokens), max(lengths), len(lengths), latent=latent, window=int(rng.choice((0, 100))), **sizes
    )
    pool, sequences = filled(case, lengths, format)
    query = [case.query[row, :some] for row, some in enumerate(tokens)]
    for isa in ISAS:
        with use_isa(isa):
            whole = attend_pool(pool, LAYER, case.what, sequences, tokens, torch.cat(query))
            parts = [
                attend(case.what, one[None], *stored(pool, sequence, case.what, length))[0]
                for one, sequence, length in zip(query, sequences, lengths, strict=True)
            ]
            assert same_bits(whole, torch.cat(parts))


def test_batches_and_threads_do_not_matter(native, rng, two_threads):
    lengths = tuple(int(n) for n in rng.integers(1, 400, 70))
    case = random_case(rng, 1, 400, 70)
    case.what = replace(case.what, sinks=normal(rng, case.what.heads))
    pool, sequences = filled(case, lengths)
    whole = attend_pool(pool, LAYER, case.what, sequences, (1,) * 70, case.query[:, 0])
    for threads in (1, 3):
        library.set_threads(threads)
        for row in (0, 17, 69):
            alone = attend_pool(pool, LAYER, case.what, [sequences[row]], [1], case.query[row])
            assert same_bits(alone, whole[row : row + 1])


def test_masks_of_left_padding(native, rng):
    case = random_case(rng, 5, 90, 3)
    case.mask = (torch.arange(90) >= torch.tensor([0, 20, 70])[:, None])[:, None, None].expand(3, 1, 5, 90)
    pool, sequences = filled(case, (90, 90, 90))
    found = attend_pool(pool, LAYER, case.what, sequences, (5, 5, 5), case.query.flatten(0, 1), case.mask)
    assert same_bits(found.unflatten(0, (3, 5)), attend(case.what, case.query, case.key, case.value, case.mask))


def test_what_is_refused(native, rng):
    case = random_case(rng, 2, 70, heads=2, key_heads=1, key_dim=8, value_dim=8)
    pool, (sequence,) = filled(case, (70,))
    query = case.query[0]
    mask = torch.ones(1, 1, 2, 70, dtype=torch.bool)
    for arguments, pattern in (
        ((LAYER + 1, case.what, [sequence], [2], query), "no such layer"),
        ((LAYER, case.what, [sequence + 1], [2], query), "no such sequence"),
        ((LAYER, replace(case.what, value_dim=4), [sequence], [2], query), "sizes that do not fit"),
        ((LAYER, case.what, [sequence], [71], case.query[0, :1].expand(71, 2, 8)), "sizes that do not fit"),
        ((LAYER, case.what, [sequence], [1], query), "query has shape"),
        ((LAYER, case.what, [sequence], [2], query, mask[..., :69]), "mask has shape"),
        ((LAYER, case.what, [sequence, sequence], [1, 0], query[:1], mask), "different lengths"),
    ):
        with pytest.raises(UnsupportedError, match=pattern):
            attend_pool(pool, *arguments)
