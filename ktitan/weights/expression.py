"""How a module's tensor is put together from stored ones: a small tree of stacks, joins and row orders.

Checkpoints store an expert at a time and modules hold all experts in one tensor; GGUF files store rows in another
order. The tree keeps these steps as data, so that a plan can be made from headers alone, a dense tensor is filled piece
by piece without a second copy, and packed operators can find the stored bytes of one expert.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import torch

from ktitan.weights.source import TensorInfo, WeightSource

__all__ = ["Concat", "Converted", "Expression", "Held", "Reordered", "Reshaped", "Shifted", "Stack", "Stored"]


class Expression(ABC):
    """A tensor that can be written; `shape` is known without reading.

    Attributes:
        shape: of the whole; () where the parts make none.
        uneven: why the parts make no tensor; empty when they do.
    """

    shape: tuple[int, ...]
    uneven: str = ""

    @abstractmethod
    def write(self, out: torch.Tensor) -> None:
        """Fill `out` (same shape; any floating dtype and device)."""

    @abstractmethod
    def leaves(self) -> Iterator[Stored]:
        """Every stored tensor that takes part, in order."""

    def dense(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> torch.Tensor:
        """The whole tensor as `dtype` on `device`."""
        out = torch.empty(self.shape, dtype=dtype, device=device)
        self.write(out)
        return out

    @property
    def stored_bytes(self) -> int:
        """Bytes in the source; a tensor of which only a part is used counts by that part."""
        return sum(leaf.nbytes for leaf in self.leaves())

    @property
    def formats(self) -> tuple[str, ...]:
        """The formats of the stored tensors, each once, in order of appearance."""
        return tuple(dict.fromkeys(leaf.info.format for leaf in self.leaves()))


class Stored(Expression):
    """Rows of one stored tensor: all of it, or one entry of its first dimension."""

    def __init__(self, source: WeightSource, info: TensorInfo, entry: int | None = None) -> None:
        self.source = source
        self.info = info
        self.entry = entry
        self.shape = info.shape if entry is None else info.shape[1:]

    @property
    def nbytes(self) -> int:
        """Stored bytes of this part."""
        return self.info.nbytes if self.entry is None else self.info.nbytes // self.info.shape[0]

    def write(self, out: torch.Tensor) -> None:
        """Read into `out`."""
        rows = math.prod(self.shape[:-1])
        self.source.read_into(self.info.name, out, 0 if self.entry is None else self.entry * rows)

    def leaves(self) -> Iterator[Stored]:
        """Itself."""
        yield self


class Held(Stored):
    """A tensor that a live module holds."""

    def __init__(self, source: WeightSource, info: TensorInfo, tensor: torch.Tensor) -> None:
        super().__init__(source, info)
        self.tensor = tensor
        self.shape = tuple(tensor.shape)  # of an entry, where only one is meant

    @property
    def nbytes(self) -> int:
        """Bytes of this part."""
        return self.tensor.numel() * self.tensor.element_size()

    def write(self, out: torch.Tensor) -> None:
        """Copy."""
        out.copy_(self.tensor)

    def dense(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> torch.Tensor:
        """The tensor itself where it is of this kind already."""
        return self.tensor.to(device=device, dtype=dtype)


class _Of(Expression):
    """An expression over one other."""

    def __init__(self, part: Expression, shape: tuple[int, ...]) -> None:
        self.part = part
        self.shape = shape
        self.uneven = part.uneven

    def leaves(self) -> Iterator[Stored]:
        """Those of the part."""
        return self.part.leaves()


class _Many(Expression):
    """An expression over several others."""

    def __init__(self, parts: Sequence[Expression], shape: tuple[int, ...]) -> None:
        self.parts = tuple(parts)
        self.shape = shape
        self.uneven = next((part.uneven for part in parts if part.uneven), "")

    def _refuse(self) -> None:
        """The parts' shapes do not go together: written all the same, rows would go where they do not belong."""
        shapes: dict[tuple[int, ...], str] = {}
        for part in self.parts:
            first = next(iter(part.leaves()), None)
            shapes.setdefault(part.shape, "" if first is None else first.info.name)
        listed = ", ".join(f"{name} {list(shape)}" for shape, name in list(shapes.items())[:2])
        self.uneven = self.uneven or f"its parts differ in shape: {listed}"
        self.shape = ()

    def leaves(self) -> Iterator[Stored]:
        """Those of all parts, in order."""
        for part in self.parts:
            yield from part.leaves()


class Stack(_Many):
    """Parts of one shape along a new first dimension: experts."""

    def __init__(self, parts: Sequence[Expression]) -> None:
        super().__init__(parts, (len(parts), *parts[0].shape))
        if len({part.shape for part in parts}) > 1:
            self._refuse()

    def write(self, out: torch.Tensor) -> None:
        """Fill entry after entry."""
        for index, part in enumerate(self.parts):
            part.write(out[index])


class Concat(_Many):
    """Parts joined along an existing dimension: gate and up."""

    def __init__(self, parts: Sequence[Expression], dim: int) -> None:
        shape = parts[0].shape
        self.dim = dim = dim % max(1, len(shape))
        super().__init__(parts, shape)
        if not shape or len({(*part.shape[:dim], "*", *part.shape[dim + 1 :]) for part in parts}) > 1:
            self._refuse()
            return
        self.shape = (*shape[:dim], sum(part.shape[dim] for part in parts), *shape[dim + 1 :])

    def write(self, out: torch.Tensor) -> None:
        """Fill range after range."""
        start = 0
        for part in self.parts:
            length = part.shape[self.dim]
            part.write(out.narrow(self.dim, start, length))
            start += length


class Reordered(_Of):
    """Rows (dimension -2, or the only one) in another order: `out[i] = part[index[i]]`. Legal on packed rows, too."""

    def __init__(self, part: Expression, index: torch.Tensor) -> None:
        super().__init__(part, part.shape)
        self.index = index

    def write(self, out: torch.Tensor) -> None:
        """Read, then gather."""
        rows = self.part.dense(out.dtype)
        out.copy_(rows.index_select(max(0, rows.dim() - 2), self.index))


class Reshaped(_Of):
    """Another shape over the same numbers in the same order."""

    def write(self, out: torch.Tensor) -> None:
        """Write through a view where there is one."""
        if out.is_contiguous():
            self.part.write(out.view(self.part.shape))
        else:
            out.copy_(self.part.dense(out.dtype).view(self.shape))


class Shifted(_Of):
    """A constant added in float32: norms that a file stores as weight + 1."""

    def __init__(self, part: Expression, addend: float) -> None:
        super().__init__(part, part.shape)
        self.addend = addend

    def write(self, out: torch.Tensor) -> None:
        """Add before rounding to the dtype of `out`."""
        out.copy_(self.part.dense(torch.float32) + self.addend)


class Converted(_Many):
    """Any other computation over whole parts, given as a function (transformers' own conversion operations)."""

    def __init__(
        self, parts: Sequence[Expression], shape: tuple[int, ...], compute: Callable[[], torch.Tensor]
    ) -> None:
        super().__init__(parts, shape)
        self.compute = compute

    def write(self, out: torch.Tensor) -> None:
        """Compute, then copy."""
        out.copy_(self.compute())
