"""A bounded queue that takes turns between clients; used by the event loop alone."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import Generic, TypeVar

__all__ = ["FairQueue"]

ItemT = TypeVar("ItemT")


class FairQueue(Generic[ItemT]):
    """Each client's requests in their order, clients in turn: who sends many waits behind who sends one.

    Args:
        limit: items that may wait.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._waiting: OrderedDict[str, deque[ItemT]] = OrderedDict()
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        return sum(len(items) for items in self._waiting.values())

    def put(self, client: str, item: ItemT) -> None:
        """Let `item` wait; the caller has compared the length with the limit."""
        self._waiting.setdefault(client, deque()).append(item)
        self._filled.set()

    async def get(self) -> ItemT:
        """The next item; its client is last in turn afterwards."""
        while not self._waiting:
            self._filled.clear()
            await self._filled.wait()
        client, items = next(iter(self._waiting.items()))
        item = items.popleft()
        self._waiting.move_to_end(client)
        if not items:
            del self._waiting[client]
        return item

    def remove(self, client: str, item: ItemT) -> bool:
        """Take `item` out, wherever it waits; whether it was there."""
        items = self._waiting.get(client)
        if items is None or item not in items:
            return False
        items.remove(item)
        if not items:
            del self._waiting[client]
        return True

    def drain(self) -> list[ItemT]:
        """Take everything out."""
        items = [item for waiting in self._waiting.values() for item in waiting]
        self._waiting.clear()
        return items

    def ahead(self, client: str, item: ItemT) -> int:
        """How many items come before `item`, as things stand."""
        items = self._waiting.get(client)
        if items is None or item not in items:
            return 0
        rank = items.index(item)
        clients = list(self._waiting)
        earlier = clients[: clients.index(client)]
        before = sum(min(len(self._waiting[other]), rank + (other in earlier)) for other in clients if other != client)
        return rank + before
