"""How the native library must turn heads so that its numbers are those of a stock rotary function; found by trying."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ktitan.native.attention import PAIRINGS, Rotation, rotate
from ktitan.operators.attention.rotary import Rotation as StockRotation
from ktitan.operators.attention.rotary import embed_positions
from ktitan.operators.stock import PROBE_FAULTS, probing

__all__ = ["Turning", "find_turning"]

_TOKENS = 5
_FIRST_POSITION = 150  # so far from 0 that scaled rotary embeddings differ from plain ones
_TOLERANCE = 1e-5

# Findings by what fixes them; a config is kept so that its id stays its own.
_found: dict[tuple[Any, ...], tuple[Any, Turning | str]] = {}


@dataclass(frozen=True)
class Turning:
    """A stock rotary function in the native library's words.

    Attributes:
        rotation: which numbers of the heads that the stock function gets are turned, and how they pair up.
        step: the cosines and sines of the pairs are every `step`-th entry of the stock tables, from the first on.
    """

    rotation: Rotation
    step: int

    def table(self, position_embeddings: Any, rows: int) -> torch.Tensor:
        """What the stock model hands its attention, as [rows * T, turned] float32: cosines, then sines.

        Args:
            position_embeddings: (cos, sin), each [B, T, W], or one complex tensor [B, T, W]; B is 1 or `rows`.
            rows: B of the hidden states.
        """
        half = self.rotation.turned // 2
        parts = [one[..., :: self.step][..., :half] for one in _waves(position_embeddings)]
        table = torch.cat([part.to("cpu", torch.float32) for part in parts], dim=-1)
        return table.expand(rows, -1, -1).reshape(-1, 2 * half).contiguous()

    def within(self, width: int, first: int) -> Rotation:
        """The rotation of heads of `width` numbers that hold the stock function's heads from `first` on."""
        inner = self.rotation
        return Rotation(width, first + inner.first, inner.turned, inner.reads, inner.writes)


def find_turning(module: Any, rotation: StockRotation, width: int) -> Turning | str:
    """The native form of `rotation` on heads of `width` numbers, or why there is none.

    Random queries and keys go through the stock function, with position embeddings of the class that stands beside the
    attention's, and through the native one in each form until the numbers agree.
    """
    key = (rotation, id(module.config), getattr(module, "layer_type", None), width)
    if key not in _found:
        _found[key] = (module.config, _find(module, rotation, width))
    return _found[key][1]


@probing()
def _find(module: Any, rotation: StockRotation, width: int) -> Turning | str:
    name = type(module).__name__
    generator = torch.Generator().manual_seed(0)
    positions = torch.arange(_FIRST_POSITION, _FIRST_POSITION + 2 * _TOKENS).view(2, _TOKENS)
    embeddings = embed_positions(module, torch.zeros(2, _TOKENS, 8), positions)
    if embeddings is None:
        return f"no rotary embedding stands beside {name} to try it with"
    query, key = (torch.randn(2, heads, _TOKENS, width, generator=generator) for heads in (3, 2))
    try:
        expected = rotation(query.clone(), key.clone(), embeddings)
        forms = list(_forms(_waves(embeddings)[0].shape[-1], width))
    except PROBE_FAULTS as error:
        return f"the rotary function of {name} could not be tried on random numbers: {error}"
    for form in forms:
        table = form.table(embeddings, 2)
        if all(_agrees(form.rotation, table, *pair) for pair in zip((query, key), expected, strict=True)):
            return form
    return f"the rotary function of {name} turns heads in a way that the native library does not have"


def _forms(entries: int, width: int) -> Iterator[Turning]:
    """All forms for tables of `entries` cosines: one a pair, or each twice, as halves or as neighbours."""
    for turned, step in ((entries, 1), (entries, 2), (2 * entries, 1)):
        if turned > width or turned % 2:
            continue
        for first in dict.fromkeys((0, width - turned)):
            for reads in PAIRINGS:
                for writes in PAIRINGS:
                    yield Turning(Rotation(width, first, turned, reads, writes), step)


def _agrees(rotation: Rotation, table: torch.Tensor, x: torch.Tensor, expected: torch.Tensor) -> bool:
    """x and expected [B, H, T, D]."""
    turned = x.transpose(1, 2).flatten(0, 1).contiguous()
    turned = rotate(turned, rotation, table)
    wanted = expected.transpose(1, 2).flatten(0, 1)
    return wanted.shape == turned.shape and bool((turned - wanted).abs().max() <= _TOLERANCE * wanted.abs().max())


def _waves(position_embeddings: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """(cosines, sines) of either form."""
    if isinstance(position_embeddings, torch.Tensor):
        return position_embeddings.real, position_embeddings.imag
    cos, sin = position_embeddings
    return cos, sin
