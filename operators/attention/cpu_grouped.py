"""Grouped-query attention by native code: as a call on tensors, and as operations of a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ktitan.context import KVLayerSpec
from ktitan.errors import UnsupportedError
from ktitan.native.attention import Attention, rotate
from ktitan.operators.attention.call import AttentionCall
from ktitan.operators.attention.grouped import projected_heads
from ktitan.operators.attention.native import attend_cached
from ktitan.operators.attention.spec import GroupedSpec

if TYPE_CHECKING:
    from ktitan.lowering import Builder, Value

__all__ = ["grouped_native", "lower_grouped"]


def grouped_native(operator: Any, spec: GroupedSpec, hidden: torch.Tensor, call: AttentionCall) -> torch.Tensor:
    """hidden [B, T, H] -> output [B, T, H]."""
    query, key, value = (projected_heads(operator, spec, which, hidden) for which in "qkv")
    table = operator.turning.table(call.position_embeddings, hidden.shape[0])
    query, key = (rotate(states, operator.turning.rotation, table) for states in (query, key))
    output = attend_cached(_attention(operator, spec), query, key, value, call)
    return operator.o_proj(output.flatten(2))


def lower_grouped(operator: Any, spec: GroupedSpec, builder: Builder, x: Value) -> Value:
    """The same operations, appended to a program.

    Raises:
        UnsupportedError: the projections are clipped, for which programs have no operation.
    """
    if spec.clip is not None:
        raise UnsupportedError("it clips its projections", operator.path, "programs have no operation for that")
    heads, key_heads, width = *_heads(operator, spec), spec.head_dim
    query = builder.module(operator.q_proj, x, width=heads * width)
    key = builder.module(operator.k_proj, x, width=key_heads * width)
    value = builder.module(operator.v_proj, x, width=key_heads * width)
    if spec.norm_over:
        query = builder.module(operator.q_norm, query, width=query.width)
        key = builder.module(operator.k_norm, key, width=key.width)
    query = builder.rotate(query, operator.turning.rotation, heads, operator)
    key = builder.rotate(key, operator.turning.rotation, key_heads, operator)
    layout = KVLayerSpec(key_heads, width, key_heads, width, torch.float32, torch.device("cpu"))
    builder.append(operator.layer_idx, key, value, layout)
    output = builder.attend(operator.layer_idx, query, _attention(operator, spec, operator.window))
    return builder.module(operator.o_proj, output, width=operator.o_proj.out_features)


def _attention(operator: Any, spec: GroupedSpec, window: int = 0) -> Attention:
    """`window` is for programs: in calls the stock model's masks have it already."""
    heads, key_heads = _heads(operator, spec)
    return Attention(
        heads=heads,
        key_heads=key_heads,
        key_dim=spec.head_dim,
        value_dim=spec.head_dim,
        scaling=spec.scaling,
        softcap=spec.softcap or 0.0,
        sinks=operator.sinks if spec.has_sinks else None,
        window=window,
    )


def _heads(operator: Any, spec: GroupedSpec) -> tuple[int, int]:
    """(query heads, key heads)."""
    return operator.o_proj.in_features // spec.head_dim, operator.k_proj.out_features // spec.head_dim
