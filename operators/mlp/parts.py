"""What a stock MLP computes from which of its children, found by running its forward with stand-ins for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import permutations

import torch
from torch import nn
from torch.nn import functional

from ktitan.operators.stock import (
    PROBE_FAULTS,
    altered_reason,
    plain_attributes,
    probing,
    shell_of,
    surplus_reason,
)

__all__ = ["ACTIVATIONS", "MlpParts", "read_parts"]

# What the native library computes between the products, by its name there.
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}

# Numbers between the products that are compared, at least.
_PROBE_NUMBERS = 4096


@dataclass(frozen=True)
class MlpParts:
    """down(act(gate(x)) * up(x)); without gate down(act(up(x))).

    Attributes:
        gate: name of a child H -> I, or None.
        up: name of a child H -> I.
        down: name of a child I -> H.
        hidden: H.
        inner: I.
        activation: the native library's name for act.
    """

    gate: str | None
    up: str
    down: str
    hidden: int
    inner: int
    activation: str

    @property
    def children(self) -> tuple[str, ...]:
        """Names of the matrices."""
        return (*(() if self.gate is None else (self.gate,)), self.up, self.down)


def read_parts(module: nn.Module) -> MlpParts | str:
    """The parts of a stock MLP, or the reason why it is none that the native library computes."""
    matrices = {name: child for name, child in module.named_children() if isinstance(child, nn.Linear)}
    others = [child for child in module.children() if not isinstance(child, nn.Linear)]
    reason = altered_reason(module) or surplus_reason(
        module, set(), children={name for name, _ in module.named_children()}
    )
    if reason is not None:
        return reason
    if len(matrices) not in (2, 3) or any(other.state_dict() for other in others):
        return "it is not made of two or three linear layers"
    changed = next(filter(None, map(altered_reason, others)), None)
    if changed is not None:
        return f"of what stands between its products: {changed}"
    candidates = list(_candidates(matrices))
    if not candidates:
        return "the sizes of its linear layers do not fit each other"
    return _tried(module, matrices, candidates)


def _candidates(matrices: dict[str, nn.Linear]) -> Iterator[MlpParts]:
    """Every order of the matrices in which the sizes fit; the activation is open."""
    for order in permutations(matrices):
        *first, down = order
        hidden, inner = matrices[down].out_features, matrices[down].in_features
        if all((matrices[one].in_features, matrices[one].out_features) == (hidden, inner) for one in first):
            yield MlpParts(first[0] if len(first) == 2 else None, first[-1], down, hidden, inner, "")


class _StandIn(nn.Module):
    """Any cheap function of the widths of a linear layer that no other one has, up to +-40 for inputs up to +-1."""

    def __init__(self, layer: nn.Linear, generator: torch.Generator) -> None:
        super().__init__()
        self.width = layer.in_features
        self.columns = torch.randint(layer.in_features, (layer.out_features,), generator=generator)
        self.factors = (torch.rand(layer.out_features, generator=generator) * 2 - 1) * 40

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] != self.width:
            raise ValueError(f"a layer of {self.width} columns is given {x.shape[-1]}")
        return x[..., self.columns] * self.factors


@probing()
def _tried(module: nn.Module, matrices: dict[str, nn.Linear], candidates: list[MlpParts]) -> MlpParts | str:
    """The first candidate with an activation whose numbers are those of the stock forward."""
    generator = torch.Generator().manual_seed(0)
    stand_ins = {name: _StandIn(one, generator) for name, one in matrices.items()}
    shell = shell_of(type(module), plain_attributes(module))
    shell._modules.update({**module._modules, **stand_ins})
    reason = ""
    for parts in candidates:
        x = torch.rand((1, -(-_PROBE_NUMBERS // parts.inner), parts.hidden), generator=generator) * 2 - 1
        try:
            found = shell(x)
        except PROBE_FAULTS as error:
            reason = f"{type(module).__name__} could not be tried on random numbers: {error}"
            continue
        for name, function in ACTIVATIONS.items():
            if isinstance(found, torch.Tensor) and _same(found, _computed(parts, function, stand_ins, x)):
                return replace(parts, activation=name)
        reason = f"it computes no down(act(gate(x)) * up(x)) with {' or '.join(ACTIVATIONS)}"
    return reason


def _computed(
    parts: MlpParts, act: Callable[[torch.Tensor], torch.Tensor], children: dict[str, _StandIn], x: torch.Tensor
) -> torch.Tensor:
    up = children[parts.up](x)
    inner = act(up) if parts.gate is None else act(children[parts.gate](x)) * up
    return children[parts.down](inner)


def _same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-5, atol=4e-3)
