"""Where a child computes on another device than its parent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ktitan.plan.rows import Hop
from ktitan.plan.visit import Visit

__all__ = ["find_hops"]

_LISTS = (nn.ModuleList, nn.ModuleDict)  # never called themselves


def find_hops(visits: Sequence[Visit]) -> list[Hop]:
    """One hop for each module whose device differs from its parent's.

    In a list of layers on one device only the last brings its output back: the next layer wants it where it is.
    Modules below a replaced one belong to its operator and do not hop.
    """
    devices = {visit.path: torch.device(visit.placement["device"]) for visit in visits}
    modules = {visit.path: visit.module for visit in visits}
    parents = {visit.path: visit.parent for visit in visits}
    hops = _root_hop(visits, devices)
    for visit in visits:
        if not visit.path or visit.covered_by or isinstance(visit.module, _LISTS):
            continue
        here, caller = devices[visit.path], _calling_device(visit.parent, modules, devices, parents)
        if here != caller:
            returns = devices.get(_next_sibling(visit, modules)) != here
            hops.append(Hop(visit.path, caller, here, returns))
    return hops


def _root_hop(visits: Sequence[Visit], devices: Mapping[str, torch.device]) -> list[Hop]:
    """A model whose first parameter (an embedding on the CPU, say) is not where the model computes.

    `model.device` is that parameter's, so users and `generate` put inputs there, and expect outputs there.
    """
    first = next((visit for visit in visits if any(p is not None for p in visit.module._parameters.values())), None)
    if first is None or devices[first.path] == devices[""]:
        return []
    return [Hop("", devices[first.path], devices[""], returns=True)]


def _calling_device(
    path: str, modules: Mapping[str, nn.Module], devices: Mapping[str, torch.device], parents: Mapping[str, str]
) -> torch.device:
    """Device of the module that calls the children of `path`: lists are passed over."""
    while path and isinstance(modules[path], _LISTS):
        path = parents[path]
    return devices[path]


def _next_sibling(visit: Visit, modules: Mapping[str, nn.Module]) -> str:
    """Path of the following entry of the same ModuleList, or a path that does not exist."""
    if not isinstance(modules.get(visit.parent), nn.ModuleList):
        return "-"
    head, _, index = visit.path.rpartition(".")
    return f"{head}.{int(index) + 1}"
