"""Which pages of a KV pool exist, which are free, and how many sequences share each of them."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["PageLedger"]


class PageLedger:
    """Counts references to numbered pages; knows nothing of what they hold."""

    def __init__(self) -> None:
        self._references: list[int] = []
        self._free: set[int] = set()

    @property
    def total(self) -> int:
        """Pages that exist, numbered from 0."""
        return len(self._references)

    @property
    def free(self) -> int:
        """Pages that nobody uses."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Pages that somebody uses; a shared page counts once."""
        return self.total - self.free

    @property
    def needed(self) -> int:
        """Pages up to the last one that is used."""
        total = self.total
        free = next((count for count, users in enumerate(reversed(self._references)) if users), total)
        return total - free

    def extend(self, pages: int) -> None:
        """Add free pages after the last one."""
        self._free.update(range(self.total, self.total + pages))
        self._references.extend([0] * pages)

    def take(self, after: int | None = None) -> int:
        """A free page, now with one reference: the one behind `after` if it is free, else the lowest.

        Neighbours matter: pages in a row can be read as a view instead of being copied together.
        """
        neighbour = -1 if after is None else after + 1
        page = neighbour if neighbour in self._free else min(self._free)
        self._free.remove(page)
        self._references[page] = 1
        return page

    def references(self, page: int) -> int:
        """How many sequences use `page`."""
        return self._references[page]

    def share(self, pages: Iterable[int]) -> None:
        """Count one more user of each page."""
        for page in pages:
            self._references[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Count one user less of each page; a page without any is free again."""
        for page in pages:
            self._references[page] -= 1
            if self._references[page] == 0:
                self._free.add(page)

    def drop_free_tail(self) -> int:
        """Forget the free pages behind the last used one; the pages that are left."""
        while self._references and self._references[-1] == 0:
            self._references.pop()
            self._free.remove(self.total)
        return self.total
