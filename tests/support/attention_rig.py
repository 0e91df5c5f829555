"""What the tests of attention operators share."""

import torch
from torch import nn

# Families of support.operator_rig by their attention.
GROUPED = ["llama", "qwen2", "gemma2", "gemma3", "qwen3_moe", "olmoe", "gpt_oss"]
LATENT = ["deepseek_v2", "deepseek_v2_yarn", "deepseek_v3", "deepseek_v3_plain"]


def attention_of(model, layer=1):
    """The attention module of a layer."""
    return model.model.layers[layer].self_attn


def logits(model, **inputs):
    """What a model says of all tokens."""
    with torch.no_grad():
        return model(**inputs).logits


class Wrapped(nn.Module):
    """A projection that hides its weight and changes it: a stand-in for adapters and packed formats."""

    def __init__(self, linear):
        super().__init__()
        self.inner, self.calls = linear, 0
        self.in_features, self.out_features = linear.in_features, linear.out_features

    @property
    def weight(self):
        raise AssertionError("nobody may look inside")

    def forward(self, x):
        self.calls += 1
        return self.inner(x) * 1.5
