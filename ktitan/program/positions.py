"""Tables of positions for rotary embeddings, made by the stock rotary modules a block at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ktitan.errors import UnsupportedError

__all__ = ["PositionSource", "PositionTables", "length_reason"]

# Positions that are computed at a time.
_BLOCK = 256
_PROBED = 8


@dataclass(frozen=True)
class PositionSource:
    """A call of a rotary module that the stock model makes for each step.

    Attributes:
        module: the rotary module.
        args, kwargs: of the call; its tensors are positions [1, T] (whole numbers) and hidden states (floats).
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def embeddings(self, positions: torch.Tensor, module: nn.Module | None = None) -> Any:
        """What the stock model hands its attentions for positions [1, P]."""

        def real(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            # Of hidden states only dtype and device count.
            return torch.zeros(1, positions.shape[1], 1) if value.is_floating_point() else positions

        kwargs = {name: real(value) for name, value in self.kwargs.items()}
        with torch.inference_mode(False), torch.no_grad():
            return (module or self.module)(*map(real, self.args), **kwargs)


@dataclass
class _Table:
    source: PositionSource
    made: Callable[[Any], torch.Tensor]  # what the stock model hands on -> [P, width]
    numbers: torch.Tensor
    positions: int = 0


@dataclass
class PositionTables:
    """All tables of a program.

    Attributes:
        sources: of the attention modules, by id.
    """

    sources: dict[int, PositionSource] = field(default_factory=dict)
    _tables: list[_Table] = field(default_factory=list)
    _numbers: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def number(self, layer: Any, width: int) -> int:
        """The number of the table for an attention module, of `width` numbers a position.

        Raises:
            UnsupportedError: it is not known what the stock model hands it.
        """
        source, turning = self.sources.get(id(layer)), getattr(layer, "turning", None)
        if source is None or turning is None:
            raise UnsupportedError(
                "it is not known where its position embeddings come from", type(layer).__name__, "run it as a module"
            )
        key = (id(source), turning.step, width)
        if key not in self._numbers:
            self._tables.append(_Table(source, lambda given: turning.table(given, 1), torch.empty(0, width)))
            self._numbers[key] = len(self._tables) - 1
        return self._numbers[key]

    @property
    def widths(self) -> list[int]:
        """Numbers a position, by number of the table."""
        return [table.numbers.shape[1] for table in self._tables]

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        return sum(table.numbers.nbytes for table in self._tables)

    @property
    def positions(self) -> int:
        """Positions that every table has."""
        return min((table.positions for table in self._tables), default=2**62)

    def numbers(self) -> list[torch.Tensor]:
        """The tables, each [P, width] float32 with rows of at least `positions`; a longer one is a new tensor."""
        return [table.numbers for table in self._tables]

    def addresses(self, first: int, end: int) -> list[int]:
        """Where the row of position `first` is in each table; rows before `end` follow."""
        for table in self._tables:
            if table.positions < end:
                _grow(table, end)
        return [table.numbers.data_ptr() + 4 * first * table.numbers.shape[1] for table in self._tables]


def _grow(table: _Table, end: int) -> None:
    wanted = -(-end // _BLOCK) * _BLOCK
    if len(table.numbers) < wanted:
        more = torch.empty(max(wanted, 2 * len(table.numbers)), table.numbers.shape[1])
        more[: table.positions] = table.numbers[: table.positions]
        table.numbers = more
    for first in range(table.positions, wanted, _BLOCK):
        positions = torch.arange(first, first + _BLOCK)[None]
        table.numbers[first : first + _BLOCK] = table.made(table.source.embeddings(positions))
    table.positions = wanted


def length_reason(source: PositionSource, longest: int) -> str | None:
    """Why a table cannot be made block by block, or None: a position's numbers must not depend on the others'.

    A copy of the module is tried, since such modules change themselves.
    """
    near = torch.arange(_PROBED)[None]
    alone, beside = (copy.deepcopy(source.module) for _ in range(2))
    far = torch.cat([near, torch.tensor([[2 * longest + 1]])], dim=1)
    first = _flat(source.embeddings(near, alone))
    second = _flat(source.embeddings(far, beside))
    if any(not torch.equal(a, b[:, :_PROBED]) for a, b in zip(first, second, strict=True)):
        kind = getattr(source.module, "rope_type", "these")
        return f"position embeddings of {kind} depend on the length of the sequence"
    return None


def _flat(embeddings: Any) -> tuple[torch.Tensor, ...]:
    return (embeddings,) if isinstance(embeddings, torch.Tensor) else tuple(embeddings)
