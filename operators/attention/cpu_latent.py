"""Multi-head latent attention by native code: as a call on tensors, and as operations of a program.

Shape letters besides the usual ones: h heads, r rank of the latent, n and p parts of a key head without and with
rotation, v width of a value head. The cache holds latents [B, 1, S, r] and rotated parts [B, 1, S, p].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ktitan.context import KVLayerSpec
from ktitan.errors import UnsupportedError
from ktitan.native import PackedMatrix
from ktitan.native.attention import Attention, heads_product, rotate
from ktitan.operators.attention.call import AttentionCall
from ktitan.operators.attention.latent import projected_queries
from ktitan.operators.attention.native import attend_cached, attend_tensors
from ktitan.operators.attention.spec import LatentSpec

if TYPE_CHECKING:
    from ktitan.lowering import Builder, Value

__all__ = ["Absorbed", "absorbed_bytes", "latent_native", "lower_latent"]


@dataclass(frozen=True)
class Absorbed:
    """The two matrices of each head that kv_b_proj [h (n + v), r] consists of, as the absorbed form takes them.

    Attributes:
        keys: W_k^T [h * r, n]: a query becomes one on latents.
        values: W_v [h * v, r]: a sum of latents becomes one of values.
        source: address and version of the weight that they were made of.
    """

    keys: PackedMatrix
    values: PackedMatrix
    source: tuple[int, int]

    @staticmethod
    def of(weight: torch.Tensor, spec: LatentSpec) -> Absorbed:
        """Copies of the parts of `weight` [h (n + v), r] float32."""
        heads = weight.detach().view(-1, spec.nope_dim + spec.value_dim, spec.rank)
        keys, values = heads.split([spec.nope_dim, spec.value_dim], dim=1)
        return Absorbed(_packed(keys.transpose(1, 2)), _packed(values), source_of(weight))


def source_of(weight: torch.Tensor) -> tuple[int, int]:
    """What changes when a weight is replaced or written to; writes under inference mode are not counted by torch."""
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version


def absorbed_bytes(module: Any, spec: LatentSpec) -> int:
    """Bytes of `Absorbed` for a stock module: as much as kv_b_proj in float32."""
    return 4 * int(module.kv_b_proj.out_features) * spec.rank


def latent_native(
    operator: Any, spec: LatentSpec, hidden: torch.Tensor, call: AttentionCall, absorbed: Absorbed | None
) -> torch.Tensor:
    """hidden [B, T, H] -> output [B, T, H]; without `absorbed` kv_b_proj is called on all latents."""
    rows, tokens = hidden.shape[:2]
    table = operator.turning.table(call.position_embeddings, rows)
    query = projected_queries(operator, spec, hidden)
    query = rotate(query, _query_rotation(operator, spec), table)
    latent, rope = operator.kv_a_proj_with_mqa(hidden).split([spec.rank, spec.rope_dim], dim=-1)
    latent = operator.kv_a_layernorm(latent).unsqueeze(2)
    rope = rotate(rope.unsqueeze(2), operator.turning.rotation, table)
    if absorbed is None:
        output = _expanded(operator, spec, query, latent, rope, call)
    else:
        heads = query.shape[2]
        nope, turned = query.flatten(0, 1).split([spec.nope_dim, spec.rope_dim], dim=-1)
        query = torch.cat([heads_product(absorbed.keys, heads, nope), turned], dim=-1).unflatten(0, (rows, tokens))
        sums = attend_cached(_attention(operator, spec), query, latent, rope, call)
        output = heads_product(absorbed.values, heads, sums.flatten(0, 1)).unflatten(0, (rows, tokens))
    return operator.o_proj(output.flatten(2))


def lower_latent(operator: Any, spec: LatentSpec, absorbed: Absorbed | None, builder: Builder, x: Value) -> Value:
    """The operations of the absorbed form, appended to a program.

    Raises:
        UnsupportedError: there is no absorbed form.
    """
    if absorbed is None:
        message = "kv_b_proj is called on all latents (it is not dense, has an adapter, or absorb is false)"
        raise UnsupportedError(message, operator.path, "programs have the absorbed form only")
    heads = _heads(operator, spec)
    query = _lowered_queries(operator, spec, heads, builder, x)
    query = builder.rotate(query, _query_rotation(operator, spec), heads, operator)
    joined = builder.module(operator.kv_a_proj_with_mqa, x, width=spec.rank + spec.rope_dim)
    latent = builder.module(operator.kv_a_layernorm, builder.columns(joined, 0, spec.rank), width=spec.rank)
    rope = builder.columns(joined, spec.rank, spec.rope_dim)
    rope = builder.rotate(rope, operator.turning.rotation, 1, operator)
    layout = KVLayerSpec(1, spec.rank, 1, spec.rope_dim, torch.float32, torch.device("cpu"))
    builder.append(operator.layer_idx, latent, rope, layout)
    nope = builder.columns(query, 0, spec.nope_dim, heads)
    turned = builder.columns(query, spec.nope_dim, spec.rope_dim, heads)
    query = builder.joined((builder.heads(nope, absorbed.keys, heads), turned), heads)
    sums = builder.attend(operator.layer_idx, query, _attention(operator, spec))
    output = builder.heads(sums, absorbed.values, heads)
    return builder.module(operator.o_proj, output, width=operator.o_proj.out_features)


def _lowered_queries(operator: Any, spec: LatentSpec, heads: int, builder: Builder, x: Value) -> Value:
    width = heads * (spec.nope_dim + spec.rope_dim)
    if not spec.has_query_rank:
        return builder.module(operator.q_proj, x, width=width)
    narrow = int(operator.q_a_proj.out_features)
    states = builder.module(operator.q_a_proj, x, width=narrow)
    return builder.module(operator.q_b_proj, builder.module(operator.q_a_layernorm, states, width=narrow), width=width)


def _expanded(
    operator: Any, spec: LatentSpec, query: torch.Tensor, latent: torch.Tensor, rope: torch.Tensor, call: AttentionCall
) -> torch.Tensor:
    """Attention on the keys and values of all S tokens: query [B, T, h, n + p], latent [B, T, 1, r], rope [B, T, 1, p]
    -> [B, T, h, v].
    """
    heads = query.shape[2]
    latents, ropes = call.remember(latent.transpose(1, 2), rope.transpose(1, 2))
    made = operator.kv_b_proj(latents[:, 0]).unflatten(-1, (heads, -1)).transpose(1, 2)
    nope, value = made.split([spec.nope_dim, spec.value_dim], dim=-1)
    key = torch.cat([nope, ropes.expand(-1, heads, -1, -1)], dim=-1)
    width = spec.nope_dim + spec.rope_dim
    what = Attention(heads, heads, width, spec.value_dim, spec.scaling)
    return attend_tensors(what, query, key, value, call)


def _attention(operator: Any, spec: LatentSpec) -> Attention:
    return Attention(
        heads=_heads(operator, spec),
        key_heads=1,
        key_dim=spec.rank,
        value_dim=spec.rope_dim,
        scaling=spec.scaling,
        latent=True,
    )


def _query_rotation(operator: Any, spec: LatentSpec) -> Any:
    return operator.turning.within(spec.nope_dim + spec.rope_dim, spec.nope_dim)


def _heads(operator: Any, spec: LatentSpec) -> int:
    return int(operator.o_proj.in_features) // spec.value_dim


def _packed(parts: torch.Tensor) -> PackedMatrix:
    """[heads, rows, columns] float32 as one matrix of stacked rows."""
    matrix = PackedMatrix("f32", parts.shape[0] * parts.shape[1], parts.shape[2])
    torch.from_numpy(matrix.data).view(torch.float32).view(parts.shape).copy_(parts)
    return matrix
