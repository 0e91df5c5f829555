"""The tensors of one module as its operator sees them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch

from ktitan.errors import WeightError
from ktitan.formats import StoredLayout, StoredRows
from ktitan.weights.binding import WeightMap
from ktitan.weights.expression import Expression, Stored
from ktitan.weights.rows import layout_of, read_rows, stored_rows

__all__ = ["BoundWeights"]

T = TypeVar("T")
Lookup = Callable[[str], "torch.Tensor | None"]


def _nothing(name: str) -> torch.Tensor | None:
    return None


class BoundWeights:
    """`ktitan.operator.ModuleWeights` over a weight map: names are relative to the module at `path`.

    Args:
        weights: the map of the whole model.
        path: dotted path of the module.
        dtypes: the stock dtype of each tensor of the module, by relative name, in the stock order.
        resident: finds a tensor that is loaded already by its full name, so that tied tensors are read once.
        packed: packed matrices that operators of this load hold, by what is stored in them.
        store: the store of the model where weights are streamed; it is only handed on.
    """

    def __init__(
        self,
        weights: WeightMap,
        path: str,
        dtypes: Mapping[str, torch.dtype],
        resident: Lookup = _nothing,
        packed: dict[Hashable, Any] | None = None,
        store: Any = None,
    ) -> None:
        self.store = store
        self._weights = weights
        self._path = path
        self._dtypes = dtypes
        self._resident = resident
        self._packed: dict[Hashable, Any] = {} if packed is None else packed
        self._shared: dict[tuple[str, torch.dtype, str], torch.Tensor] | None = None

    def names(self) -> list[str]:
        """See `ModuleWeights.names`."""
        return list(self._dtypes)

    def shape(self, name: str) -> tuple[int, ...]:
        """See `ModuleWeights.shape`."""
        return self.expression(name).shape

    def formats(self, name: str) -> tuple[str, ...]:
        """See `ModuleWeights.formats`."""
        return self.expression(name).formats

    def stored_bytes(self, name: str) -> int:
        """See `ModuleWeights.stored_bytes`."""
        return self.expression(name).stored_bytes

    def expression(self, name: str) -> Expression:
        """How `name` is put together from stored tensors.

        Raises:
            WeightError: no source fills it.
        """
        full = self._full(name)
        found = self._weights.bindings.get(self._weights.tied.get(full, full))
        if found is None:
            raise WeightError("no source fills it", full, "give the file that holds it as one of weights=[...]")
        return found

    def tensor(self, name: str, dtype: torch.dtype | None = None, device: torch.device | str = "cpu") -> torch.Tensor:
        """See `ModuleWeights.tensor`."""
        wanted = dtype or self._dtypes[name]
        key = (name, wanted, str(torch.device(device)))
        if self._shared is not None and key in self._shared:
            return self._shared[key]
        partner = self._weights.tied.get(self._full(name))
        held = self._resident(partner) if partner else None
        if held is not None and held.dtype == wanted and held.device == torch.device(device):
            return held
        made = self.expression(name).dense(wanted, device)
        if self._shared is not None:
            self._shared[key] = made
        return made

    def layout(self, name: str) -> StoredLayout | None:
        """See `ModuleWeights.layout`."""
        return layout_of(self.expression(name))

    def read_rows(self, name: str, out: np.ndarray, first: int = 0, entry: int | None = None) -> None:
        """See `ModuleWeights.read_rows`."""
        read_rows(self.expression(name), out, first, entry)

    def stored_rows(self, name: str, first: int, count: int, entry: int | None = None) -> StoredRows | None:
        """See `ModuleWeights.stored_rows`."""
        return stored_rows(self.expression(name), first, count, entry)

    def once(self, name: str, make: Callable[[], T], kind: str = "") -> T:
        """See `ModuleWeights.once`."""
        full, expression = self._full(name), self.expression(name)
        key: Hashable = self._weights.tied.get(full, full)
        if isinstance(expression, Stored):
            # An untied head may be filled from the embedding's tensor, too.
            key = (id(expression.source), expression.info.name, expression.entry)
        if (kind, key) not in self._packed:
            self._packed[kind, key] = make()
        return self._packed[kind, key]

    def sharing(self) -> BoundWeights:
        """The same view, which hands out one tensor for equal requests: the operators of two phases share it."""
        view = BoundWeights(self._weights, self._path, self._dtypes, self._resident, self._packed, self.store)
        view._shared = {}
        return view

    def _full(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name
