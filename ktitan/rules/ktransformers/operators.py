"""What each operator of KTransformers is here. A kernel that is new in ktitan is one line in `LINEAR` or `EXPERTS`.

Names, backends and defaults are those of KTransformers v0.3.2 (`ktransformers/operators/*.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ktitan.rules.ruleset import KEEP

__all__ = ["DEFAULT", "OPERATORS", "Backend", "Target"]


@dataclass(frozen=True)
class Backend:
    """What a `generate_op` or `prefill_op` is here: operators in the order of preference, and what differs."""

    operators: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True)
class Target:
    """What a class named in `replace:` is here.

    Attributes:
        operators: in the order of preference; those of the backend where the class has backends.
        note: what differs; `{}` is the class.
        backends: by the names of `generate_op` and `prefill_op`.
        generate: op and device of decoding when the file gives none.
        prefill: the same for prompts.
        moves_layers: it is the model, whose kwargs move layers to other devices.
    """

    operators: tuple[str, ...] = (KEEP,)
    note: str = ""
    backends: Mapping[str, Backend] = field(default_factory=dict)
    generate: tuple[str, str] = ("", "")
    prefill: tuple[str, str] = ("", "")
    moves_layers: bool = False


def _dense(operator: str, why: str) -> Backend:
    return Backend((operator,), f"{why}; here {operator} computes with dense weights in the model's dtype")


LINEAR = {
    "KLinearTorch": Backend(("linear.torch",)),
    "KLinearCPUInfer": Backend(("linear.cpu", "linear.torch")),
    "KLinearMarlin": _dense("linear.torch", "KLinearMarlin requantizes to 4 bits on the GPU"),
    "VLinearMarlin": _dense("linear.torch", "VLinearMarlin requantizes to 4 bits on the GPU"),
    "KLinearFP8": _dense("linear.torch", "KLinearFP8 keeps 8-bit floats on the GPU"),
    "KLinearQ8": _dense("linear.torch", "KLinearQ8 requantizes to 8 bits"),
    "KLinearIPEXLLM": _dense("linear.torch", "KLinearIPEXLLM is for Intel GPUs"),
}
EXPERTS = {
    "KExpertsTorch": Backend(("experts.torch",)),
    "KExpertsCPU": Backend(("experts.cpu", "experts.torch")),
    "KExpertsMarlin": _dense("experts.torch", "KExpertsMarlin requantizes to 4 bits on the GPU"),
}

_SAME = "{}: the stock module stays; it computes the same"
_BLOCK = "{}: the stock block stays; shared experts are not computed beside those on the CPU, but after them"

DEFAULT = Target()
_LINEAR = Target((), "", LINEAR, ("KLinearMarlin", "cuda"), ("KLinearTorch", "cuda"))
_EXPERTS = Target((), "", EXPERTS, ("KExpertsCPU", "cpu"), ("KExpertsTorch", "cuda"))
_ATTENTION = Target(("attention.torch",))
_NORM = Target(("norm.torch",))
_STOCK = Target(note=_SAME)
_MOE_BLOCK = Target(note=_BLOCK)
_MODEL = Target(note="{}: the stock model stays; layers are placed by rules, and inputs move where the device changes",
                moves_layers=True)  # fmt: skip

_GROUPS = (
    (_LINEAR, "KTransformersLinear"),
    (_EXPERTS, "KTransformersExperts KTransformersExpertsV2 KSmallthinkerExperts KGlm4Experts"),
    (
        _ATTENTION,
        "KDeepseekV2Attention KDeepseekV3Attention flashinfer_attn deepseek_torch_attn KQwen2MoeAttention "
        "KQwen3MoeAttention KQwen3MoeAttentionIPEXLLM KSmallthinkerAttention KGlm4MoeAttention KQwen3NextAttention",
    ),
    (
        Target(("attention.torch",), "{} leaves out parts of long contexts; here attention.torch reads all of them"),
        "KLlamaAttention",
    ),
    (
        _NORM,
        "RMSNorm KQwen2MoeRMSNorm KQwen3MoeRMSNorm KSmallthinkerRMSNorm KGlm4MoeRMSNorm KQwen3NextRMSNorm "
        "KDeepseekRMSNormIPEXLLM",
    ),
    (
        _STOCK,
        "RotaryEmbedding RotaryEmbeddingV2 RotaryEmbeddingV3 RotaryEmbeddingV4 YarnRotaryEmbedding "
        "YarnRotaryEmbeddingV3 DynamicNTKScalingRotaryEmbedding KQwen3MoeRotaryEmbedding KSmallthinkerRotaryEmbedding "
        "KGlm4MoeRotaryEmbedding KMoEGate KMoEGateQwen2Moe KMoEGateDeepSeekV3 KMoEGateIPEXLLM kDeepseekV3MLP "
        "KQwen2MoeMLP KSmallthinkerDenseMlpBlock KGlm4MoeMLP KQwen3NextGatedDeltaNet",
    ),
    (
        _MOE_BLOCK,
        "KQwen2MoeSparseMoeBlock KQwen2MoeSparseMoeBlockV2 KDeepseekV2MoE KDeepseekV3MoE KDeepseekV3MoEV2 "
        "KMistralSparseMoEBlock KQwen3MoeSparseMoeBlockV2 KSmallthinkerMoeBlock KGlm4MoeMoE KQwen3NextSparseMoeBlockV2",
    ),
    (_MODEL, "KQwen2MoeModel KDeepseekV2Model KLlamaModel"),
)
OPERATORS: dict[str, Target] = {name: target for target, names in _GROUPS for name in names.split()}
