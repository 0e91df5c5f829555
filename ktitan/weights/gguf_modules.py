"""What llama.cpp calls the tensors of a model's modules, for people who know a model by those names."""

from __future__ import annotations

from typing import Any

import gguf
from torch import nn

from ktitan.errors import UnsupportedError
from ktitan.weights.gguf_names import FAMILIES

__all__ = ["gguf_tensor_names"]


def gguf_tensor_names(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """GGUF names of the weights of each module that has some, by the module's path: `blk.0.attn_q.weight`.

    The routed experts of a layer are one module and three tensors; `attn_kv_b` is one tensor, also where a file keeps
    its two halves. Names come from `gguf`'s own tables.

    Raises:
        UnsupportedError: no GGUF architecture is known for this family.
    """
    config: Any = getattr(model, "config", None)
    kind = getattr(config, "model_type", type(model).__name__)
    architecture = next((name for name, family in FAMILIES.items() if kind in family.model_types), None)
    if architecture is None:
        known = sorted(kind for family in FAMILIES.values() for kind in family.model_types)
        raise UnsupportedError(
            f"the tensors of a {kind!r} have no GGUF names here; known: {', '.join(known)}",
            remedy="place modules by a rule file (docs/rules.md)",
        )
    key = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    table = gguf.get_tensor_name_map(key, config.num_hidden_layers)
    names = {}
    for path, module in model.named_modules():
        parts = [""] if "weight" in module._parameters else []
        if any(name in module._parameters for name in ("gate_up_proj", "down_proj")):
            parts = [".gate_proj", ".up_proj", ".down_proj"]
        bases = [base for part in parts if (base := table.get_name(path + part))]
        if bases:
            names[path] = tuple(f"{base}.weight" for base in bases)
    return names
