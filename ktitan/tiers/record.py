"""Records: what moves between tiers as one, and how the stored pieces of one lie in its slot.

Reads past the page cache are whole pages, so a piece keeps its position within its first page, and pieces that do not
follow each other in a file start on pages of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ktitan.formats import Span

__all__ = ["PAGE_BYTES", "Extent", "Record", "lay_out", "round_up"]

# KT_PAGE of csrc/tiers/io.h.
PAGE_BYTES = 4096
# Spans with at most this between them are read together: the gap costs less than a read of its own.
_MOST_GAP = PAGE_BYTES


@dataclass(frozen=True, slots=True)
class Extent:
    """A byte range that is read at once, and where its first byte goes in the slot."""

    span: Span
    at: int


@dataclass(frozen=True, slots=True)
class Record:
    """An expert's matrices, or the weights of a dense layer.

    Attributes:
        name: module path, with the expert's number: "model.layers.3.mlp.experts[17]".
        extents: the reads that bring it.
        places: where each part begins in the slot, in the order in which `lay_out` got them.
        slot_bytes: bytes of a slot for it, whole pages.
    """

    name: str
    extents: tuple[Extent, ...]
    places: tuple[int, ...]
    slot_bytes: int


def lay_out(name: str, parts: Sequence[Sequence[Span]]) -> Record | None:
    """The record of `parts`, each the spans of one matrix in order; None where a matrix would be torn apart.

    Spans that continue each other in memory and in the file become one extent. A matrix of several spans stays whole
    only where each but the last ends on a page and each but the first begins on one.
    """
    extents: list[Extent] = []
    places: list[int] = []
    for spans in parts:
        end: int | None = None
        for span in spans:
            at = _place(extents, span)
            if end is None:
                places.append(at)
            elif at != end:
                return None
            end = at + span.nbytes
    slot = max((round_up(one.at + one.span.nbytes) for one in extents), default=0)
    return Record(name, tuple(extents), tuple(places), slot)


def _place(extents: list[Extent], span: Span) -> int:
    """Where `span` goes; the last extent grows over it, or it gets one of its own."""
    if extents:
        last = extents[-1]
        gap = span.offset - (last.span.offset + last.span.nbytes)
        if last.span.file == span.file and 0 <= gap <= _MOST_GAP:
            grown = Span(span.file, last.span.offset, last.span.nbytes + gap + span.nbytes)
            extents[-1] = Extent(grown, last.at)
            return last.at + span.offset - last.span.offset
    start = round_up(extents[-1].at + extents[-1].span.nbytes) if extents else 0
    at = start + span.offset % PAGE_BYTES
    extents.append(Extent(span, at))
    return at


def round_up(size: int) -> int:
    """`size` in whole pages, in bytes."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES
