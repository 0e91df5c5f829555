"""What tests of KV pools share: tokens of small layers, and the comparison of what a pool holds."""

import torch

KEY, VALUE = (2, 3), (1, 5)
TOKEN_BYTES = (2 * 3 + 5) * 4
PAGE_BYTES = 64 * TOKEN_BYTES


def fresh(tokens, key=KEY, value=VALUE, dtype=torch.float32):
    return torch.randn(tokens, *key).to(dtype), torch.randn(tokens, *value).to(dtype)


def filled(pool, tokens, layers=(0,)):
    """A new sequence of `tokens` tokens and what it holds in each layer."""
    sequence = pool.new_sequence()
    stored = {}
    for layer in layers:
        stored[layer] = fresh(tokens)
        pool.append(layer, sequence, *stored[layer])
    return sequence, stored


def assert_holds(pool, layer, sequence, keys, values):
    for got, expected in zip(pool.gather(layer, sequence), (keys, values), strict=True):
        assert torch.equal(got, expected)
    pages = list(pool.pages(layer, sequence))
    assert all(len(k) == 64 for k, _ in pages[:-1])
    assert sum(len(k) for k, _ in pages) == len(keys) == pool.length(layer, sequence)
    if pages:
        assert torch.equal(torch.cat([k for k, _ in pages]), keys)
        assert torch.equal(torch.cat([v for _, v in pages]), values)
