"""`match: class:`: the modelling classes that KTransformers brings are stock classes of transformers 5."""

from __future__ import annotations

import re

__all__ = ["stock_class"]

# What is another class in KTransformers' modelling files (`ktransformers/models/modeling_*.py`) is one class a family
# in transformers 5.17 to 5.24: kinds of rotary embeddings, and of attention.
_KIND = re.compile(r"(Yarn|LinearScaling|DynamicNTKScaling)(?=RotaryEmbedding\Z)|(FlashAttention2|SdpaAttention)\Z")
_RENAMED = {"DeepseekV2MoE": "DeepseekV2Moe"}
_ROUTERS = {"modeling_deepseek": "DeepseekV2TopkRouter"}


def stock_class(path: str) -> str:
    """The class that `path` names, as a version 1 match writes it.

    Only classes of `ktransformers.models` and `transformers` are shortened to their name, which is theirs alone.
    """
    module, _, name = path.rpartition(".")
    if not module.startswith(("ktransformers.", "transformers.")):
        return path
    if name == "MoEGate":
        return _ROUTERS.get(module.rpartition(".")[2], "DeepseekV3TopkRouter")
    stock = _KIND.sub(lambda kind: "Attention" if kind[2] else "", name)
    return _RENAMED.get(stock, stock)
