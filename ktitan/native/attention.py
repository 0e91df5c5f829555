"""Attention and what belongs to it in float32 by the native library: rotation, heads of their own matrices.

Shape letters: B rows, T query tokens of a row, S keys, H query heads, Hk key heads, D and Dv widths of keys and values.
csrc/cpu/README.md has the arithmetic: a row of the result depends on its query and the keys that it sees, not on T,
B, threads or where the keys lie.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Protocol

import torch

from ktitan.errors import UnsupportedError
from ktitan.native.arguments import check_tensor
from ktitan.native.attention_forms import PAIRINGS, Attention, Rotation, mask_of, view_of
from ktitan.native.cpu import MatrixStruct
from ktitan.native.library import loaded
from ktitan.native.matrix import PackedMatrix
from ktitan.native.norms import plain
from ktitan.native.status import raise_for

__all__ = [
    "PAIRINGS",
    "Attention",
    "Rotation",
    "attend",
    "attend_pool",
    "heads_product",
    "rotate",
]


class _Pool(Protocol):
    """A native KV pool (`ktitan.native.pool`)."""

    address: int

    def length(self, layer: int, sequence: int) -> int: ...


def rotate(x: torch.Tensor, rotation: Rotation, table: torch.Tensor) -> torch.Tensor:
    """x with the heads of each token turned, in a tensor of its own.

    Args:
        x: float32 [..., heads, width]; its leading dimensions are N tokens together.
        rotation: what is turned.
        table: float32 [N, turned]: turned / 2 cosines of each token, then as many sines.

    Raises:
        UnsupportedError: a tensor is of another kind or shape, or x wants a gradient.
    """
    out = plain("x", x)
    if out.dim() < 2 or out.shape[-1] != rotation.width:
        raise UnsupportedError(
            f"x has shape {list(x.shape)}", "x", f"give heads of {rotation.width} numbers, [..., heads, width]"
        )
    tokens = out.shape[:-2].numel()
    check_tensor("table", table, (tokens, rotation.turned), torch.float32)
    out = out.clone() if out.data_ptr() == x.data_ptr() else out
    what = ctypes.addressof(rotation.struct)
    raise_for(loaded().kt_rotate(what, out.data_ptr(), tokens, out.shape[-2], table.data_ptr()))
    return out


def attend(
    what: Attention,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    causal: bool = True,
) -> torch.Tensor:
    """Attention on tensors: query [B, T, H, D], key [B, S, Hk, D], value [B, S, Hk, Dv] -> [B, T, H, Dv], all float32.

    Args:
        what: sizes and scaling; with latents see there.
        query, key, value: of any strides; the numbers of a head are copied together where they are not.
        mask: None, bool (True: look) or additive, broadcasting to [B, H, T, S]. What it hides weighs exactly 0; a token
            that sees nothing gets zeros.
        causal: the queries are the last T of S tokens, and see themselves and earlier ones, at most `window`. Without
            it the mask alone tells.

    Raises:
        UnsupportedError: a tensor is of another kind or shape or wants a gradient, or causal queries outnumber keys.
    """
    rows, tokens = query.shape[:2] if query.dim() == 4 else (1, 1)
    keys = key.shape[1] if key.dim() == 4 else 1
    views = (
        view_of("query", query, (rows, tokens, what.heads, what.query_dim)),
        view_of("key", key, (rows, keys, what.key_heads, what.key_dim)),
        view_of("value", value, (rows, keys, what.key_heads, what.value_dim)),
    )
    if causal and tokens > keys:
        raise UnsupportedError(f"{tokens} causal queries on {keys} keys", "query", "give the keys of the queries, too")
    hides = mask_of(mask, (rows, what.heads, tokens, keys))
    out = query.new_empty((rows, tokens, what.heads, what.out_dim))
    addresses = [ctypes.addressof(view) for view, _ in views]
    given = ctypes.addressof(hides[0]) if hides is not None else None
    raise_for(
        loaded().kt_attend(
            ctypes.addressof(what.struct), rows, tokens, keys, *addresses, given, int(causal), out.data_ptr()
        )
    )
    return out


def attend_pool(
    pool: _Pool,
    layer: int,
    what: Attention,
    sequences: Sequence[int],
    tokens: Sequence[int],
    query: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention on a pool, whose layer holds the keys of the queries already: query [T, H, D] -> [T, H, Dv].

    Args:
        pool: the native pool.
        layer: its layer, declared with the widths of `what`.
        what: sizes and scaling.
        sequences: of the pool.
        tokens: how many queries each has; they are the sequence's last tokens, packed in one row.
        query: float32.
        mask: as in `attend`, [sequences, H, T, S], where all sequences have T tokens and S keys.

    Raises:
        UnsupportedError: a tensor is of another kind or shape, or the pool does not hold what is asked for.
    """
    packed = plain("query", query)
    check_tensor("query", packed, (sum(tokens), what.heads, what.query_dim), torch.float32)
    hides = None
    if mask is not None:
        lengths = {pool.length(layer, sequence) for sequence in sequences}
        if len(lengths) != 1 or len(set(tokens)) != 1:
            raise UnsupportedError(
                "a mask over sequences of different lengths", "mask", "give sequences of one length, or no mask"
            )
        hides = mask_of(mask, (len(sequences), what.heads, tokens[0], lengths.pop()))
    out = packed.new_empty((packed.shape[0], what.heads, what.out_dim))
    numbers = ctypes.c_int64 * len(sequences)
    raise_for(
        loaded().kt_attend_pool(
            pool.address,
            layer,
            ctypes.addressof(what.struct),
            numbers(*sequences),
            numbers(*tokens),
            len(sequences),
            packed.data_ptr(),
            ctypes.addressof(hides[0]) if hides is not None else None,
            out.data_ptr(),
        )
    )
    return out


def heads_product(weight: PackedMatrix, heads: int, x: torch.Tensor) -> torch.Tensor:
    """Each head's own matrix in float32: weight [heads * N, K], x [T, heads, K] -> [T, heads, N].

    Raises:
        UnsupportedError: the rows are no whole number a head, or x is of another kind or shape.
    """
    if heads < 1 or weight.rows % heads:
        raise UnsupportedError(f"{weight.rows} rows for {heads} heads", "weight", "stack one matrix for each head")
    rows = plain("x", x)
    tokens = rows.shape[0] if rows.dim() == 3 else 1
    check_tensor("x", rows, (tokens, heads, weight.columns), torch.float32)
    out = rows.new_empty((tokens, heads, weight.rows // heads))
    matrix = MatrixStruct(weight.address, weight.rows, weight.columns, weight.row_bytes, weight.ggml_type)
    raise_for(loaded().kt_heads_product(ctypes.addressof(matrix), heads, rows.data_ptr(), tokens, out.data_ptr()))
    return out
