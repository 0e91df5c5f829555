"""Attention, norms and rotation by their formulas in float64, and random inputs for them."""

from dataclasses import dataclass, field

import torch

from ktitan.native.attention import Attention


@dataclass
class Case:
    """Inputs of one call: query [B, T, H, D], key [B, S, Hk, D], value [B, S, Hk, Dv]."""

    what: Attention
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None = None
    causal: bool = True
    note: dict = field(default_factory=dict)


def normal(rng, *shape):
    return torch.from_numpy(rng.standard_normal(shape).astype("float32"))


def random_case(rng, tokens, keys, rows=1, **changes):
    """A case of random sizes; `changes` are fields of `Attention`."""
    key_heads = 1 if changes.get("latent") else int(rng.choice((1, 2, 3)))
    sizes = {
        "heads": key_heads * int(rng.choice((1, 2, 3, 7))),
        "key_heads": key_heads,
        "key_dim": int(rng.choice((8, 24, 33, 64, 80, 128, 256))),
        "value_dim": int(rng.choice((8, 17, 64, 96, 128))),
    }
    sizes |= changes
    what = Attention(**{"scaling": float(sizes["key_dim"] ** -0.5), **sizes})
    return Case(
        what,
        normal(rng, rows, tokens, what.heads, what.query_dim) * 2,
        normal(rng, rows, keys, what.key_heads, what.key_dim),
        normal(rng, rows, keys, what.key_heads, what.value_dim),
    )


def visible(case):
    """[B, H, T, S] bool: what a query sees by causality, window and mask."""
    rows, tokens, heads = case.query.shape[:3]
    keys = case.key.shape[1]
    sees = torch.ones(rows, heads, tokens, keys, dtype=torch.bool)
    if case.causal:
        sees = sees.tril(keys - tokens)
        if case.what.window:
            sees = sees.triu(keys - tokens - case.what.window + 1)
    if case.mask is not None:
        sees = sees & (case.mask if case.mask.dtype == torch.bool else case.mask > -1e38)
    return sees


def attention_twin(case):
    """The result [B, T, H, D of the result] in float64; rows that see nothing are zeros."""
    what, group = case.what, case.what.heads // case.what.key_heads
    query, key, value = (x.double().transpose(1, 2) for x in (case.query, case.key, case.value))
    if what.latent:
        key, value = torch.cat([key, value], -1), key
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = query @ key.transpose(2, 3) * what.scaling
    if what.softcap:
        scores = what.softcap * torch.tanh(scores / what.softcap)
    if case.mask is not None and case.mask.dtype != torch.bool:
        scores = scores + case.mask.double()
    scores = scores.masked_fill(~visible(case), float("-inf"))
    if what.sinks is not None:
        sink = what.sinks.double().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sink], -1)
    weights = scores.softmax(-1)[..., : key.shape[2]].nan_to_num(0.0)
    return (weights @ value).transpose(1, 2)


def turned_twin(x, rotation, table):
    """x [N, heads, width] turned in float64; table [N, turned]."""
    first, half, out = rotation.first, rotation.turned // 2, x.double().clone()
    part = out[..., first : first + rotation.turned]
    pair = (part[..., :half], part[..., half:]) if rotation.reads == "halves" else (part[..., ::2], part[..., 1::2])
    cosine, sine = table.double()[:, None, :half], table.double()[:, None, half:]
    a, b = pair[0] * cosine - pair[1] * sine, pair[1] * cosine + pair[0] * sine
    out[..., first : first + rotation.turned] = (
        torch.cat([a, b], -1) if rotation.writes == "halves" else torch.stack([a, b], -1).flatten(-2)
    )
    return out
