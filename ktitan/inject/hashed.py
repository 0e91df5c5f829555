"""Layers that route by token: their experts are known from the ids of a step, before anything is computed.

The router has a table [V, K] of experts by token id (DeepSeek-V4's `hash_moe`, arXiv 2106.04426 for the idea).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import nn

from ktitan.inject.decoder import decoder_layers, expert_count, stock_block
from ktitan.operator import probing
from ktitan.shells import PROBE_FAULTS, Call, StandIn, float32_copy, shell_of

__all__ = ["tables_of"]

_PROBE_TOKENS = 32


def tables_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """[V, K] int64 by path of the experts, for layers whose stock block does choose by it."""
    found = {}
    for layer in decoder_layers(model):
        if layer.experts is None or not layer.block:
            continue
        table = _table(stock_block(layer.module.get_submodule(layer.block)), layer.experts.rpartition(".")[2])
        if table is not None:
            found[layer.experts] = table
    return found


def _table(block: nn.Module, experts_name: str) -> torch.Tensor | None:
    experts = expert_count(block.get_submodule(experts_name))
    for name, router in block.named_children():
        for table in router._buffers.values():
            if table is None or table.dim() != 2 or table.is_floating_point() or table.is_meta or not table.is_cpu:
                continue
            if int(table.min()) >= 0 and int(table.max()) < experts and _is_used(block, name, experts_name, table):
                return table
    return None


def _is_used(block: nn.Module, name: str, experts_name: str, table: torch.Tensor) -> bool:
    """Whether the block hands its experts the rows of `table` for the ids that it is given."""
    calls: list[Call] = []
    children: dict[str, nn.Module] = {
        other: StandIn(other, calls, torch.zeros_like) for other, _ in block.named_children()
    }
    router: Any = block.get_submodule(name)
    weight = router._parameters.get("weight")
    if weight is None or weight.dim() != 2:
        return False
    with probing():
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(len(table), (1, _PROBE_TOKENS), generator=generator)
        rows = torch.randn((1, _PROBE_TOKENS, weight.shape[1]), generator=generator)
        with suppress(*PROBE_FAULTS):
            children[name] = float32_copy(router)
            type(block).forward(shell_of(block, children), rows, input_ids=ids)
    call = next((call for call in calls if call.name == experts_name), None)
    index = None if call is None else next((one for one in call.rest if not one.is_floating_point()), None)
    return index is not None and torch.equal(index.long(), table[ids[0]].long())
