"""Reads off a stock attention module which of the two known attentions it is, and its flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from ktitan.operators.stock import altered_reason, packed_reason, surplus_reason

__all__ = ["GroupedSpec", "LatentSpec", "read_spec"]

_GROUPED_LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj")
_LATENT_LINEARS = ("kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
_LATENT_SIZES = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


@dataclass(frozen=True)
class GroupedSpec:
    """Grouped-query attention: H query heads on Hk key heads of D dimensions.

    Attributes:
        head_dim: D.
        scaling: factor on query times key.
        norm_over: what q_norm and k_norm normalise: "" (none), "head" (each head's D, Qwen 3) or "all" (all heads as
            one row, before they are split, OLMoE).
        clip: bound on queries, keys and values before rotation (OLMo), or None.
        softcap: bound on the scores (Gemma 2), or None; it always holds, also under transformers' sdpa implementation,
            from which version 5.17 drops it.
        has_sinks: the module owns one logit a head that takes part in the softmax (gpt-oss).
    """

    head_dim: int
    scaling: float
    norm_over: str
    clip: float | None
    softcap: float | None
    has_sinks: bool


@dataclass(frozen=True)
class LatentSpec:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): all heads share one latent of rank r a token.

    Attributes:
        rank: r, width of the latent.
        nope_dim, rope_dim: parts of a query or key head without and with rotation.
        value_dim: width of a value head.
        scaling: factor on query times key, YaRN's correction included.
        has_query_rank: queries come through q_a_proj, q_a_layernorm and q_b_proj instead of q_proj.
    """

    rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    scaling: float
    has_query_rank: bool


def read_spec(module: Any) -> GroupedSpec | LatentSpec | str:
    """The spec of a stock attention module, or the reason why it is neither attention.

    Structure only: whether the class computes what the spec says is for `ktitan.operators.attention.probe`.
    """
    reason = altered_reason(module) or packed_reason(module)
    if reason is not None:
        return reason
    for name in ("config", "layer_idx", "scaling"):
        if not hasattr(module, name):
            return f"it has no {name}"
    if not isinstance(module.scaling, float):
        return f"its scaling is a {type(module.scaling).__name__}, not a number"
    return _latent(module) if "kv_b_proj" in module._modules else _grouped(module)


def _grouped(module: Any) -> GroupedSpec | str:
    reason = surplus_reason(module, {"sinks"}, children={*_GROUPED_LINEARS, "q_norm", "k_norm"})
    reason = reason or _linear_reason(module, _GROUPED_LINEARS)
    if reason is not None:
        return reason
    head_dim = getattr(module, "head_dim", None)
    if not isinstance(head_dim, int):
        return "it has no head_dim"
    widths: dict[str, int] = {name: getattr(module, name).out_features for name in ("q_proj", "k_proj", "v_proj")}
    if widths["k_proj"] != widths["v_proj"] or widths["q_proj"] != module.o_proj.in_features:
        return f"the widths {widths} and o_proj {module.o_proj.in_features} are not those of plain attention"
    if any(width % head_dim for width in widths.values()) or widths["q_proj"] % widths["k_proj"]:
        return f"the widths {widths} are not whole groups of heads of {head_dim}"
    norm_over = _norm_over(module, head_dim, widths)
    if norm_over is None:
        return "its q_norm and k_norm fit neither one head nor all heads"
    return GroupedSpec(
        head_dim=head_dim,
        scaling=module.scaling,
        norm_over=norm_over,
        clip=getattr(module.config, "clip_qkv", None),
        softcap=getattr(module, "attn_logit_softcapping", None),
        has_sinks=module._parameters.get("sinks") is not None,
    )


def _norm_over(module: nn.Module, head_dim: int, widths: dict[str, int]) -> str | None:
    norms = [module._modules.get(name) for name in ("q_norm", "k_norm")]
    if norms == [None, None]:
        return ""
    sizes = [_norm_width(norm) for norm in norms]
    if sizes == [head_dim, head_dim]:
        return "head"
    return "all" if sizes == [widths["q_proj"], widths["k_proj"]] else None


def _norm_width(norm: nn.Module | None) -> int | None:
    weight: Any = getattr(norm, "weight", None)
    return int(weight.shape[-1]) if weight is not None and weight.dim() == 1 else None


def _latent(module: Any) -> LatentSpec | str:
    for name in _LATENT_SIZES:
        if not isinstance(getattr(module, name, None), int):
            return f"it has no {name}"
    has_query_rank = getattr(module, "q_lora_rank", None) is not None
    queries = {"q_a_proj", "q_a_layernorm", "q_b_proj"} if has_query_rank else {"q_proj"}
    reason = surplus_reason(module, set(), children={*_LATENT_LINEARS, "kv_a_layernorm", *queries})
    linears = (*_LATENT_LINEARS, *sorted(name for name in queries if name.endswith("_proj")))
    reason = reason or _linear_reason(module, linears)
    if reason is not None:
        return reason
    heads = module.o_proj.in_features // module.v_head_dim
    spec = LatentSpec(
        rank=module.kv_lora_rank,
        nope_dim=module.qk_nope_head_dim,
        rope_dim=module.qk_rope_head_dim,
        value_dim=module.v_head_dim,
        scaling=module.scaling,
        has_query_rank=has_query_rank,
    )
    widths = (
        (module.q_b_proj if has_query_rank else module.q_proj).out_features - heads * (spec.nope_dim + spec.rope_dim),
        module.kv_a_proj_with_mqa.out_features - spec.rank - spec.rope_dim,
        module.kv_b_proj.in_features - spec.rank,
        module.kv_b_proj.out_features - heads * (spec.nope_dim + spec.value_dim),
    )
    return "the widths of its projections are not those of latent attention" if any(widths) else spec


def _linear_reason(module: nn.Module, names: tuple[str, ...]) -> str | None:
    for name in names:
        child = module._modules.get(name)
        if child is None:
            return f"it has no {name}"
        if not isinstance(getattr(child, "in_features", None), int):
            return f"its {name} is a {type(child).__name__}, not a linear layer"
    return None
