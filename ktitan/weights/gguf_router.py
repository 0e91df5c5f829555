"""The router of deepseek2 files that do not say how they score experts.

llama.cpp takes a missing `deepseek2.expert_gating_func` for softmax (https://github.com/ggml-org/llama.cpp,
src/models). DeepSeek V2's class does just that; a file that also has selection biases (`exp_probs_b`) or normalised
weights needs V3's class with softmax in place of its sigmoid.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

from ktitan.weights.gguf_source import GgufSource

__all__ = ["SOFTMAX_SCORES", "SoftmaxTopkRouter", "router_notes", "set_routers"]

# Value of `config.scoring_func` that DeepSeek's own code knows, and transformers' class does not read.
SOFTMAX_SCORES = "softmax"


class SoftmaxTopkRouter(DeepseekV3TopkRouter):
    """DeepSeek V3's router with softmax scores; all else (biases, groups, normalisation, scale) is as there."""

    num_group: int
    topk_group: int
    top_k: int
    num_experts: int

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """hidden [.., H] -> (logits [T, E], weights [T, K], indices [T, K])."""
        rows = hidden_states.reshape(-1, self.hidden_dim).float()
        logits = functional.linear(rows, self.weight.float())
        scores = logits.softmax(-1)
        by_group = (scores + self.e_score_correction_bias).view(
            len(rows), self.num_group, self.num_experts // self.num_group
        )
        best = by_group.topk(2, dim=-1).values.sum(-1).topk(self.topk_group, dim=-1).indices
        closed = torch.ones_like(by_group[..., 0], dtype=torch.bool).scatter_(1, best, False)
        candidates = by_group.masked_fill(closed[..., None], float("-inf")).flatten(1)
        indices = candidates.topk(self.top_k, dim=-1).indices
        weights = scores.gather(1, indices)
        if self.norm_topk_prob:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return logits, weights * self.routed_scaling_factor, indices


def set_routers(model: nn.Module) -> None:
    """Give a model that was just built from a file's config the routers that the config asks for."""
    if getattr(getattr(model, "config", None), "scoring_func", None) != SOFTMAX_SCORES:
        return
    for module in model.modules():
        if type(module) is DeepseekV3TopkRouter:
            module.__class__ = SoftmaxTopkRouter


def router_notes(source: GgufSource) -> list[str]:
    """What a plan should say about routing that the file leaves open."""
    experts = source.metadata.get("deepseek2.expert_count")
    if source.architecture != "deepseek2" or not experts or source.metadata.get("deepseek2.expert_gating_func"):
        return []
    return [
        f"{source.path}: deepseek2.expert_gating_func is missing; experts are chosen by softmax, as llama.cpp does. "
        "DeepSeek V3 and R1 need 2 (sigmoid): set it with gguf-new-metadata if this is one of them"
    ]
