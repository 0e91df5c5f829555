"""How the rows of a model's tensor lie in storage, for operators that keep them as they are."""

from __future__ import annotations

from dataclasses import dataclass

from ktitan.formats.base import find_format

__all__ = ["Span", "StoredLayout", "StoredRows"]


@dataclass(frozen=True, slots=True)
class Span:
    """A byte range of a file."""

    file: str
    offset: int
    nbytes: int


@dataclass(frozen=True)
class StoredRows:
    """Where rows of one format are stored: the spans, one after another, are the rows without gaps.

    Attributes:
        format: of all rows.
        rows: how many.
        columns: numbers in a row.
        spans: in the order of the stored rows.
        order: stored rows come in another order than the model's: model row i is stored row order[i]. None: the same.
    """

    format: str
    rows: int
    columns: int
    spans: tuple[Span, ...]
    order: tuple[int, ...] | None = None

    @property
    def nbytes(self) -> int:
        """Stored bytes."""
        return sum(span.nbytes for span in self.spans)


@dataclass(frozen=True)
class StoredLayout:
    """A tensor [rows, columns], or [entries, rows, columns], whose rows are stored whole.

    Attributes:
        entries: length of the first dimension of a 3-D tensor (experts); 1 for a matrix.
        columns: numbers in a row.
        segments: (format, rows) in row order, neighbours of one format joined; every entry has the same.
    """

    entries: int
    columns: int
    segments: tuple[tuple[str, int], ...]

    @property
    def rows(self) -> int:
        """Rows of one entry."""
        return sum(count for _, count in self.segments)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all entries as stored."""
        return self.entries * sum(
            find_format(name, "layout").row_bytes(self.columns) * count for name, count in self.segments
        )

    @property
    def formats(self) -> tuple[str, ...]:
        """Formats in row order, each once."""
        return tuple(dict.fromkeys(name for name, _ in self.segments))

    def format_of(self, first: int, count: int) -> str | None:
        """The one format of rows `first` to `first + count`; None when they have several, or are not all there."""
        start, found = 0, set()
        for name, rows in self.segments:
            if start < first + count and first < start + rows:
                found.add(name)
            start += rows
        return found.pop() if len(found) == 1 and 0 <= first <= first + count <= start else None
