"""Operators over random packed weights, beside the same numbers dequantised."""

import numpy as np
import torch
from torch import nn

from ktitan.formats import StoredLayout, find_format
from ktitan.operator import OperatorContext
from ktitan.registry import operators

from support.gguf_blocks import PACKED, random_rows
from support.operator_rig import HARDWARE, StateWeights, meta_twin

PLAIN = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
KINDS = [*PLAIN, *PACKED]


def width(kind, blocks=2):
    """A row length of `blocks` blocks that is odd where the type allows it."""
    return find_format(kind, "test").block_elements * blocks if kind in PACKED else 37


def stored_rows(kind, shape, rng):
    """(uint8 rows [*shape[:-1], row_bytes], float32 numbers [*shape])."""
    if kind in PLAIN:
        numbers = torch.from_numpy(rng.standard_normal(shape).astype(np.float32) * 0.1).to(PLAIN[kind])
        rows = numbers.contiguous().view(torch.uint8).numpy().reshape(*shape[:-1], -1)
        return rows, numbers.float()
    rows = random_rows(kind, shape, rng)
    flat = rows.reshape(-1, rows.shape[-1])
    return rows, torch.from_numpy(find_format(kind, "test").dequantize(flat)).view(shape)


class PackedWeights(StateWeights):
    """ModuleWeights of a module whose tensors are stored as the given row segments, the others as they are.

    Args:
        module: holds the dequantised numbers.
        packed: name -> [(format, uint8 [(E,) rows, row_bytes]), ...] in row order.
    """

    def __init__(self, module, packed):
        super().__init__(module)
        self.packed = packed
        self.made = {}

    def layout(self, name):
        if name not in self.packed:
            return None
        segments = tuple((kind, rows.shape[-2]) for kind, rows in self.packed[name])
        entries = self.packed[name][0][1].shape[0] if self.state[name].dim() == 3 else 1
        return StoredLayout(entries, self.state[name].shape[-1], segments)

    def read_rows(self, name, out, first=0, entry=None):
        start = 0
        for _, rows in self.packed[name]:
            part = rows if entry is None else rows[entry]
            if start <= first < start + len(part):
                out[...] = part[first - start : first - start + len(out)]
            start += len(part)

    def once(self, name, make):
        return self.made.setdefault(name, make())


def packed_linear(kind, inputs, outputs, rng, bias=True):
    """(a stock Linear on the dequantised numbers, its stored weights)."""
    module = nn.Linear(inputs, outputs, bias=bias)
    rows, numbers = stored_rows(kind, (outputs, inputs), rng)
    module.weight.data.copy_(numbers)
    return module.requires_grad_(False), PackedWeights(module, {"weight": [(kind, rows)]})


def packed_context(module, weights, path="layer.module", dtype=torch.float32, device="cpu"):
    formats = {name: tuple(kind for kind, _ in parts) for name, parts in weights.packed.items()}
    layouts = {name: weights.layout(name) for name in weights.packed}
    return OperatorContext(path, module, torch.device(device), "ram", dtype, HARDWARE, formats, layouts)


def packed_operator(name, module, weights, dtype=torch.float32, **kwargs):
    """Operator `name` in the place of `module`, loaded from stored rows."""
    kind = operators.get(name)
    config, stock = kind.Config(**kwargs), meta_twin(module)
    context = packed_context(stock, weights, dtype=dtype)
    reason = kind.supports(context, config)
    assert reason is None, reason
    operator = kind.from_module(stock, config, context)
    operator.load(weights)
    return operator.eval()


def reason_of(name, module, weights, device="cpu", **kwargs):
    kind = operators.get(name)
    return kind.supports(packed_context(module, weights, device=device), kind.Config(**kwargs))
