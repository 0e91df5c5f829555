"""The tensors behind a KV pool: chunks of pages, the same page numbers in every layer.

A chunk is one tensor per layer for keys, [pages * 64, Hk, Dk], and one for values: a token is a row, and page p of the
chunk is the rows 64 p to 64 p + 63. Chunks never move, so growing copies nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from ktitan.context import PAGE_TOKENS, KVLayerSpec

__all__ = ["LayerStore", "PageStore", "Rows", "WritePart"]

Rows = slice | torch.Tensor


@dataclass(frozen=True)
class WritePart:
    """Rows of a packed step and the rows of one chunk that they go to (slices, or int64 indices of equal length)."""

    chunk: int
    target: Rows
    source: Rows


class LayerStore:
    """The chunks of one layer."""

    def __init__(self, spec: KVLayerSpec, chunk_pages: Sequence[int]) -> None:
        self.spec = spec
        self._key_shape = (spec.key_heads, spec.key_dim)
        self._value_shape = (spec.value_heads, spec.value_dim)
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        for pages in chunk_pages:
            self.attach(*self.new_chunk(pages))

    def takes(self, keys: torch.Tensor, values: torch.Tensor) -> bool:
        """Whether keys [T, heads, dim] and values [T, heads, dim] are of the kind that the layer stores."""
        return (
            keys.shape[1:] == self._key_shape
            and values.shape[1:] == self._value_shape
            and keys.dtype == values.dtype == self.spec.dtype
            and keys.device == values.device == self.spec.device
        )

    def new_chunk(self, pages: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a chunk of `pages` uninitialised pages."""
        spec, rows = self.spec, pages * PAGE_TOKENS
        # Made under inference mode, the tensors could not be written to outside of it.
        with torch.inference_mode(False):
            return (
                torch.empty(rows, spec.key_heads, spec.key_dim, dtype=spec.dtype, device=spec.device),
                torch.empty(rows, spec.value_heads, spec.value_dim, dtype=spec.dtype, device=spec.device),
            )

    def attach(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Append a chunk that `new_chunk` made."""
        self.keys.append(keys)
        self.values.append(values)

    def cut_chunk(self, chunk: int, pages: int) -> None:
        """Keep the first `pages` pages of the last chunk; with 0 the chunk goes."""
        rows = pages * PAGE_TOKENS
        with torch.inference_mode(False):
            for tensors in (self.keys, self.values):
                tensors[chunk:] = [tensors[chunk][:rows].clone()] if pages else []

    def write(self, parts: Sequence[WritePart], keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store a packed step, keys [T, Hk, Dk] and values [T, Hv, Dv], at the places that `parts` names."""
        for part in parts:
            self.keys[part.chunk][part.target] = keys[part.source]
            self.values[part.chunk][part.target] = values[part.source]


class PageStore:
    """All layers' chunks, and where each page lies."""

    def __init__(self) -> None:
        self.layers: dict[int, LayerStore] = {}
        self._chunk_pages: list[int] = []
        self._places: list[tuple[int, int]] = []

    @property
    def pages(self) -> int:
        """Pages that exist."""
        return len(self._places)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all declared layers."""
        return PAGE_TOKENS * sum(layer.spec.token_bytes for layer in self.layers.values())

    def declare(self, layer: int, spec: KVLayerSpec) -> None:
        """Make a layer's storage for all pages that exist."""
        self.layers[layer] = LayerStore(spec, self._chunk_pages)

    def grow(self, pages: int) -> None:
        """Add a chunk of pages in every layer; when a device is out of memory, in none."""
        chunk = len(self._chunk_pages)
        made = [(store, *store.new_chunk(pages)) for store in self.layers.values()]
        for store, keys, values in made:
            store.attach(keys, values)
        self._chunk_pages.append(pages)
        self._places.extend((chunk, page * PAGE_TOKENS) for page in range(pages))

    def shrink(self, pages: int) -> None:
        """Keep the first `pages` pages and give the memory of the others back."""
        while self.pages > pages:
            chunk = len(self._chunk_pages) - 1
            left = max(0, self._chunk_pages[chunk] - (self.pages - pages))
            for store in self.layers.values():
                store.cut_chunk(chunk, left)
            del self._places[self.pages - self._chunk_pages[chunk] + left :]
            self._chunk_pages[chunk:] = [left] if left else []

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page to another in every layer."""
        (chunk_from, row_from), (chunk_to, row_to) = self._places[source], self._places[target]
        for store in self.layers.values():
            for tensors in (store.keys, store.values):
                tensors[chunk_to][row_to : row_to + PAGE_TOKENS] = tensors[chunk_from][
                    row_from : row_from + PAGE_TOKENS
                ]

    def page(self, layer: int, page: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of the first `tokens` tokens of a page: keys [tokens, Hk, Dk], values [tokens, Hv, Dv]."""
        store = self.layers[layer]
        chunk, row = self._places[page]
        return store.keys[chunk][row : row + tokens], store.values[chunk][row : row + tokens]

    def views(self, layer: int, pages: Sequence[int]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The named pages in order, as few views of keys and of values as their neighbourhood allows."""
        store = self.layers[layer]
        runs = list(self._runs(pages))
        keys = [store.keys[chunk][row : row + rows] for chunk, row, rows in runs]
        return keys, [store.values[chunk][row : row + rows] for chunk, row, rows in runs]

    def _runs(self, pages: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """Chunk, first row and number of rows of each stretch of `pages` that lies in a row."""
        chunk, row, rows = -1, 0, 0
        for page in pages:
            place = self._places[page]
            if place == (chunk, row + rows):
                rows += PAGE_TOKENS
                continue
            if rows:
                yield chunk, row, rows
            (chunk, row), rows = place, PAGE_TOKENS
        if rows:
            yield chunk, row, rows

    def write_parts(
        self, tables: Sequence[Sequence[int]], starts: Sequence[int], tokens: Sequence[int], device: torch.device
    ) -> list[WritePart]:
        """Where a packed step goes: `tokens[i]` tokens from position `starts[i]` of the sequence with table i.

        Stretches become slices; single tokens that go to one chunk, as when a batch decodes, become one indexed write.
        """
        parts: list[WritePart] = []
        singles: dict[int, list[tuple[int, int]]] = {}
        for chunk, row, source, rows in self._stretches(tables, starts, tokens):
            if rows == 1:
                singles.setdefault(chunk, []).append((row, source))
            else:
                parts.append(WritePart(chunk, slice(row, row + rows), slice(source, source + rows)))
        for chunk, pairs in singles.items():
            if len(pairs) == 1:
                ((row, source),) = pairs
                parts.append(WritePart(chunk, slice(row, row + 1), slice(source, source + 1)))
            else:
                targets, sources = torch.tensor(pairs, device=device).unbind(1)
                parts.append(WritePart(chunk, targets, sources))
        return parts

    def _stretches(
        self, tables: Sequence[Sequence[int]], starts: Sequence[int], tokens: Sequence[int]
    ) -> Iterator[tuple[int, int, int, int]]:
        """Chunk, first row, first packed row and number of rows of each stretch of a packed step."""
        source = 0
        for table, start, count in zip(tables, starts, tokens, strict=True):
            if count == 0:
                continue
            skip, left = start % PAGE_TOKENS, count
            for chunk, row, rows in self._runs(table[start // PAGE_TOKENS : (start + count - 1) // PAGE_TOKENS + 1]):
                taken = min(rows - skip, left)
                yield chunk, row + skip, source, taken
                source, left, skip = source + taken, left - taken, 0
