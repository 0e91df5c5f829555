"""A builder whose operations run at once: what `lower` appends is compared with what `forward` computes."""

from dataclasses import dataclass

import torch
from torch import nn

from ktitan.lowering import Builder, Value
from ktitan.native.attention import attend_pool, heads_product, rotate
from ktitan.native.norms import rms_norm


@dataclass(frozen=True)
class Held(Value):
    """A value with its numbers, [T, width]."""

    numbers: torch.Tensor = None


class EagerBuilder(Builder):
    """One step of `tokens` tokens of each sequence of a native pool, packed in a row.

    Attributes:
        done: names of the operations, in order.
    """

    def __init__(self, pool, sequences, tokens, positions):
        """positions: what the stock model hands the attention, by the attention module."""
        self.pool, self.sequences, self.tokens = pool, sequences, (tokens,) * len(sequences)
        self.positions = positions
        self.done = []

    def value(self, numbers, what="input"):
        self.done.append(what)
        return Held(len(self.done), numbers.shape[1], numbers.contiguous())

    def module(self, module: nn.Module, *inputs, width):
        if hasattr(module, "lower") and "cpu" in getattr(module, "operator_name", ""):
            return module.lower(self, *inputs)
        made = self.value(module(*(one.numbers for one in inputs)), type(module).__name__)
        assert made.width == width
        return made

    def norm(self, x, weight, eps, unit_offset=False):
        groups = x.numbers.view(x.numbers.shape[0], -1, len(weight))
        return self.value(rms_norm(groups, weight, eps, unit_offset).flatten(1), "norm")

    def heads(self, x, weight, heads):
        return self.value(heads_product(weight, heads, x.numbers.view(len(x.numbers), heads, -1)).flatten(1), "heads")

    def rotate(self, x, rotation, heads, layer):
        table = layer.turning.table(self.positions, len(self.sequences))
        return self.value(rotate(x.numbers.view(len(x.numbers), heads, -1), rotation, table).flatten(1), "rotate")

    def columns(self, x, first, count, groups=1):
        parts = x.numbers.view(len(x.numbers), groups, -1)[..., first : first + count]
        return self.value(parts.flatten(1), "columns")

    def joined(self, parts, groups=1):
        views = [one.numbers.view(len(one.numbers), groups, -1) for one in parts]
        return self.value(torch.cat(views, -1).flatten(1), "joined")

    def append(self, layer, keys, values, spec):
        shaped = (
            keys.numbers.view(-1, spec.key_heads, spec.key_dim),
            values.numbers.view(-1, spec.value_heads, spec.value_dim),
        )
        assert (spec.dtype, spec.device.type) == (torch.float32, "cpu")
        self.done.append("append")
        self.pool.append_packed(layer, self.sequences, self.tokens, *shaped)

    def attend(self, layer, query, attention):
        numbers = query.numbers.view(len(query.numbers), attention.heads, -1)
        out = attend_pool(self.pool.native, layer, attention, self.sequences, self.tokens, numbers, None)
        return self.value(out.flatten(1), "attend")

    def _absent(self, *_, **__):
        raise AssertionError("no attention or norm appends this")

    rows = linear = activate = add = scale = gate = route = experts = foresee = _absent
