"""The tensors of one module as its operator sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from ktitan.errors import WeightError
from ktitan.weights.binding import WeightMap
from ktitan.weights.expression import Expression

__all__ = ["BoundWeights"]

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
    """

    def __init__(
        self, weights: WeightMap, path: str, dtypes: Mapping[str, torch.dtype], resident: Lookup = _nothing
    ) -> None:
        self._weights = weights
        self._path = path
        self._dtypes = dtypes
        self._resident = resident
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

    def sharing(self) -> BoundWeights:
        """The same view, which hands out one tensor for equal requests: the operators of two phases share it."""
        view = BoundWeights(self._weights, self._path, self._dtypes, self._resident)
        view._shared = {}
        return view

    def _full(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name
