"""GGUF tensor names -> tensors of the stock HuggingFace module, with llama.cpp's value changes undone.

Names come from `gguf`'s own tables; what the tables cannot say (rows in another order, fused or split tensors) is a
row of `FAMILIES`: a pattern on the module's tensor name and a function that makes the expression.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gguf
import torch
from torch import nn

from ktitan.errors import UnsupportedError
from ktitan.weights.expression import Concat, Converted, Expression, Reordered, Reshaped, Shifted, Stack, Stored
from ktitan.weights.gguf_metadata import GgufKeys
from ktitan.weights.gguf_rope import ROPE_FACTORS, rope_factors
from ktitan.weights.gguf_router import SOFTMAX_SCORES
from ktitan.weights.gguf_source import GgufSource

__all__ = ["FAMILIES", "Family", "gguf_bindings"]

EMBEDDING, HEAD, HEAD_STORED = "token_embd.weight", "lm_head.weight", "output.weight"
# What the config says already, or old files stored though it can be computed.
COMPUTED = re.compile(r"blk\.\d+\.(rope_freqs|attn_rot_embd)\.weight")
BLOCK = re.compile(r"blk\.(\d+)\.")

Shape = tuple[int, ...]


def gguf_bindings(model: nn.Module, source: GgufSource) -> tuple[dict[str, Expression], list[str]]:
    """How `source` fills the tensors of the stock `model` (usually on meta).

    Returns:
        The expression of each filled tensor by its name in `model.state_dict()`, and the stored names that nothing
        uses. A tied head without bytes of its own is left out, as are tensors that the file lacks.

    Raises:
        UnsupportedError: the architecture is unknown, or the model is of another family.
    """
    family = _family(model, source)
    names = _Names(model, source)
    bindings: dict[str, Expression] = {}
    for target, tensor in model.state_dict().items():
        shape = tuple(tensor.shape)
        made = _expression(names, family, target, shape)
        if made is None:
            continue
        # Gates with one output are stored as a vector.
        bindings[target] = Reshaped(made, shape) if shape == (1, *made.shape) else made
    return bindings, _surplus(names)


@dataclass(frozen=True)
class Family:
    """One GGUF architecture.

    Attributes:
        model_types: HuggingFace model types whose modules these tensors fit.
        rules: pattern on the module's tensor name (full match) and what makes its expression; the first match counts.
    """

    model_types: tuple[str, ...]
    rules: tuple[tuple[str, Callable[[_Names, re.Match[str], Shape], Expression | None]], ...]


class _Names:
    """The stored tensors of one model by HuggingFace name, remembering which were used."""

    def __init__(self, model: nn.Module, source: GgufSource) -> None:
        self.source = source
        config: Any = model.config
        self.config = config
        self.tied = HEAD in (getattr(model, "all_tied_weights_keys", None) or {})
        self.used: set[str] = set()
        architecture = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == source.architecture)
        self._table = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)

    def find(self, module: str, suffix: str) -> Stored | None:
        """The stored tensor of a module's parameter."""
        base = self._table.get_name(module)
        return None if base is None else self.take(base + suffix)

    def base(self, module: str) -> str:
        """GGUF's name of a module, without suffix; empty when the table has none."""
        return self._table.get_name(module) or ""

    def take(self, name: str) -> Stored | None:
        """The stored tensor called `name`, which then counts as used."""
        info = self.source.tensors.get(name)
        if info is None:
            return None
        self.used.add(name)
        return Stored(self.source, info)


def _family(model: nn.Module, source: GgufSource) -> Family:
    family = FAMILIES.get(source.architecture)
    if family is None:
        raise UnsupportedError(
            f"GGUF architecture {source.architecture!r} has no names here; known: {', '.join(sorted(FAMILIES))}",
            source.path,
            "give safetensors instead",
        )
    kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    if kind not in family.model_types:
        raise UnsupportedError(
            f"the file holds a model of architecture {source.architecture!r}, the module is a {kind!r}",
            source.path,
            f"it fits {', '.join(family.model_types)}; take config and weights from one model",
        )
    return family


def _expression(names: _Names, family: Family, target: str, shape: Shape) -> Expression | None:
    for pattern, make in family.rules:
        match = re.fullmatch(pattern, target)
        if match is not None:
            return make(names, match, shape)
    module, _, suffix = target.rpartition(".")
    return names.find(module, f".{suffix}")


def _surplus(names: _Names) -> list[str]:
    source, layers = names.source, names.config.num_hidden_layers
    # Layers beyond the last predict further tokens (MTP); the stock classes do not have them either.
    predicted = layers + GgufKeys(source).integer("nextn_predict_layers", 0, minimum=0)
    unused = []
    for name in source.tensors:
        block = BLOCK.match(name)
        explained = block is not None and layers <= int(block[1]) < predicted
        if name not in names.used and not explained and not _in_config(names, name):
            unused.append(name)
    return unused


def _in_config(names: _Names, name: str) -> bool:
    """Whether the model's config accounts for a tensor; rotary factors need a config that scales."""
    if name != ROPE_FACTORS:
        return COMPUTED.fullmatch(name) is not None
    scaled = (names.config.rope_parameters or {}).get("rope_type", "default") != "default"
    return scaled or rope_factors(names.source) is None


def _head(names: _Names, match: re.Match[str], shape: Shape) -> Expression | None:
    """The output matrix; a file without one means the embedding, also where the model has two parameters."""
    stored = names.take(HEAD_STORED)
    return names.take(EMBEDDING) if stored is None and not names.tied else stored


def _rotary_rows(names: _Names, match: re.Match[str], shape: Shape) -> Expression | None:
    """Rows of q and k, which the file keeps in the order of interleaved rotary pairs."""
    stored = names.find(match["module"], match["suffix"])
    config = names.config
    heads = config.num_attention_heads if match["role"] == "q" else config.num_key_value_heads
    if stored is None or stored.shape[0] % (2 * heads):
        return stored
    return Reordered(stored, _half_order(stored.shape[0], heads))


@functools.lru_cache(maxsize=16)
def _half_order(rows: int, heads: int) -> torch.Tensor:
    """For each row of a rotate-half matrix its row among interleaved pairs, int64 [rows]."""
    return torch.arange(rows).view(heads, -1, 2).transpose(1, 2).reshape(-1)


def _gate_up(names: _Names, match: re.Match[str], shape: Shape) -> Expression | None:
    """Experts' gate and up projections [E, 2I, H]: two tensors, one fused one, or two an expert."""
    module = match["module"]
    fused = names.take(names.base(f"{module}.gate_proj").replace("gate_exps", "gate_up_exps") + ".weight")
    if fused is not None:
        return fused
    gate, up = (_experts(names, f"{module}.{role}_proj", shape[0]) for role in ("gate", "up"))
    if gate is None or up is None:
        return None
    # Stacks of unequal length are joined the other way, so that the shape tells what is missing.
    return Concat([gate, up], dim=1 if gate.shape[:1] == up.shape[:1] else 0)


def _down(names: _Names, match: re.Match[str], shape: Shape) -> Expression | None:
    """Experts' down projection [E, H, I]."""
    return _experts(names, f"{match['module']}.down_proj", shape[0])


def _experts(names: _Names, module: str, count: int) -> Expression | None:
    """All experts of one role: a 3-D tensor, or (files of before April 2024) one tensor an expert."""
    stored = names.find(module, ".weight")
    if stored is not None:
        return stored
    base = names.base(module).replace("_exps", "")
    single = [names.take(f"{base}.{expert}.weight") for expert in range(count)]
    present = [one for one in single if one is not None]
    return Stack(present) if present else None


def _latent_up(names: _Names, match: re.Match[str], shape: Shape) -> Expression | None:
    """`kv_b_proj` [heads * (nope + v), rank]: one tensor, or the two that absorbed attention wants.

    Split files keep k transposed a head, [heads, rank, nope], beside v [heads, v, rank]; both may also be flat.
    """
    module = match["module"]
    key, value = names.find(f"{module}.k_b_proj", ".weight"), names.find(f"{module}.v_b_proj", ".weight")
    whole = names.find(f"{module}.kv_b_proj", ".weight")
    if whole is not None or key is None or value is None:
        return whole
    heads = names.config.num_attention_heads
    keys, values = _by_head(key, heads), _by_head(value, heads)
    if len(keys.shape) != 3 or len(values.shape) != 3 or keys.shape[:2] != (values.shape[0], values.shape[2]):
        raise UnsupportedError(
            f"{key.info.name} {list(key.shape)} and {value.info.name} {list(value.shape)} do not make one kv_b",
            names.source.path,
            "convert the model again with llama.cpp",
        )
    transposed = Converted([keys], (keys.shape[0], keys.shape[2], keys.shape[1]), partial(_transposed, keys))
    joined = Concat([transposed, values], dim=1)
    return Reshaped(joined, (joined.shape[0] * joined.shape[1], joined.shape[2]))


def _by_head(stored: Stored, heads: int) -> Expression:
    if len(stored.shape) == 2 and stored.shape[0] % heads == 0:
        return Reshaped(stored, (heads, stored.shape[0] // heads, stored.shape[1]))
    return stored


def _transposed(part: Expression) -> torch.Tensor:
    return part.dense(torch.float32).transpose(1, 2)


def _selection_bias(names: _Names, match: re.Match[str], shape: Shape) -> Expression | None:
    """The router's selection bias; gguf's table knows it without the end of its name."""
    found = names.find(f"{match['module']}.e_score_correction", ".bias")
    if found is None and getattr(names.config, "scoring_func", None) == SOFTMAX_SCORES:
        return Converted((), shape, partial(torch.zeros, shape))  # softmax routers may have none
    return found


def _norm_minus_one(names: _Names, match: re.Match[str], shape: Shape) -> Expression | None:
    """A norm whose factor is 1 + weight in the module (Gemma); the file holds the whole factor."""
    stored = names.find(match["module"], ".weight")
    return None if stored is None else Shifted(stored, -1.0)


_EXPERTS = ((r"(?P<module>.+\.experts)\.gate_up_proj", _gate_up), (r"(?P<module>.+\.experts)\.down_proj", _down))
_TIED = ((re.escape(HEAD), _head),)
_ROTARY = r"(?P<module>.+\.self_attn\.(?P<role>[qk])_proj)(?P<suffix>\.(weight|bias))"

FAMILIES: dict[str, Family] = {
    "llama": Family(("llama", "mistral", "mixtral"), (*_TIED, (_ROTARY, _rotary_rows), *_EXPERTS)),
    "qwen2": Family(("qwen2",), _TIED),
    "qwen2moe": Family(("qwen2_moe",), (*_TIED, *_EXPERTS)),
    "qwen3": Family(("qwen3",), _TIED),
    "qwen3moe": Family(("qwen3_moe",), (*_TIED, *_EXPERTS)),
    "gemma3": Family(("gemma3_text",), (*_TIED, (r"(?P<module>.*norm)\.weight", _norm_minus_one))),
    "deepseek2": Family(
        ("deepseek_v2", "deepseek_v3"),
        (
            *_TIED,
            (r"(?P<module>.+\.self_attn)\.kv_b_proj\.weight", _latent_up),
            (r"(?P<module>.+\.gate)\.e_score_correction_bias", _selection_bias),
            *_EXPERTS,
        ),
    ),
}
