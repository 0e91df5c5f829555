"""How the cache is shared out: size classes for experts, a cycle for dense layers, buffers for rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ktitan.errors import BudgetError
from ktitan.tiers.budget import format_bytes
from ktitan.tiers.record import PAGE_BYTES, round_up

__all__ = ["CacheNeed", "Shares", "cache_need", "class_of", "class_sizes", "least_cycle", "share_out"]

# Of a slot at most this part stays unused by the smallest record of its class.
MOST_WASTE = 0.03
# Slots that a size class has at least: one is computed with while the next one is read.
LEAST_SLOTS = 2
# Rows of a table that are read at a time.
ROWS_AT_ONCE = 64


@dataclass(frozen=True)
class CacheNeed:
    """What streamed weights need of the RAM budget.

    Attributes:
        pooled_bytes: slots of all experts' records together.
        cycle_bytes: slots of all dense records together.
        row_bytes: buffers for rows of tables.
        least_bytes: below this nothing can be computed with them.
    """

    pooled_bytes: int = 0
    cycle_bytes: int = 0
    row_bytes: int = 0
    least_bytes: int = 0

    @property
    def all_bytes(self) -> int:
        """With this, every record is read once and stays."""
        return self.pooled_bytes + self.cycle_bytes + self.row_bytes


@dataclass(frozen=True)
class Shares:
    """A cache shared out: (bytes of a slot, slots) of each size class, bytes of the dense cycle and of row buffers."""

    pools: tuple[tuple[int, int], ...]
    cycle_bytes: int
    row_bytes: int


def class_sizes(slot_bytes: Sequence[int]) -> list[int]:
    """Slot bytes of the size classes for records of these sizes, the largest first: each wastes at most 3 %."""
    classes: list[int] = []
    for size in sorted(set(slot_bytes), reverse=True):
        if not classes or size < classes[-1] * (1 - MOST_WASTE):
            classes.append(size)
    return classes


def class_of(size: int, classes: Sequence[int]) -> int:
    """Number of the smallest class that holds `size` bytes."""
    return max(number for number, slot in enumerate(classes) if slot >= size)


def cache_need(pooled: Sequence[int], dense: Sequence[int], rows: Sequence[int]) -> CacheNeed:
    """The need of records with these slot bytes (dense ones in the order of use), and of tables with such rows."""
    pools = _pools(pooled)
    least_pooled = sum(size * min(count, LEAST_SLOTS) for size, count in pools)
    row_bytes = max((ROWS_AT_ONCE * (round_up(size) + PAGE_BYTES) for size in rows), default=0)
    least = least_pooled + least_cycle(dense) + row_bytes
    return CacheNeed(sum(size * count for size, count in pools), sum(dense), row_bytes, least)


def share_out(cache_bytes: int, pooled: Sequence[int], dense: Sequence[int], rows: Sequence[int]) -> Shares:
    """Share `cache_bytes` out; arguments as in `cache_need`.

    Dense records come first: one that stays saves its bytes at every token, an expert's only when it is chosen.

    Raises:
        BudgetError: it is less than the least need.
    """
    need = cache_need(pooled, dense, rows)
    if cache_bytes < need.least_bytes:
        raise BudgetError(
            f"a cache of {format_bytes(cache_bytes)} for streamed weights that need {format_bytes(need.least_bytes)}",
            "ram",
            "raise the ram budget",
        )
    pools = _pools(pooled)
    least_pooled = sum(size * min(count, LEAST_SLOTS) for size, count in pools)
    left = cache_bytes - need.row_bytes
    cycle = min(need.cycle_bytes, left - least_pooled) // PAGE_BYTES * PAGE_BYTES
    return Shares(_fill(pools, left - cycle), cycle, need.row_bytes)


def least_cycle(dense: Sequence[int]) -> int:
    """Bytes with which dense records can be used and read ahead: the two largest neighbours, of which the last and the
    first are a pair (kt_cycle_least).
    """
    if len(dense) < 2:
        return sum(dense)
    return max(first + second for first, second in zip(dense, [*dense[1:], dense[0]], strict=True))


def _pools(pooled: Sequence[int]) -> list[tuple[int, int]]:
    """(bytes of a slot, records) of each size class."""
    classes = class_sizes(pooled)
    numbers = [class_of(size, classes) for size in pooled]
    return [(size, numbers.count(number)) for number, size in enumerate(classes)]


def _fill(pools: Sequence[tuple[int, int]], room: int) -> tuple[tuple[int, int], ...]:
    """Slots for each class in proportion to the bytes of its records, at least the least number of each."""
    total = sum(size * count for size, count in pools)
    slots = [min(count, LEAST_SLOTS) for _, count in pools]
    spare = room - sum(size * some for (size, _), some in zip(pools, slots, strict=True))
    for number, (size, count) in enumerate(pools):
        wanted = min(count, room * count // total) if total else 0
        more = max(0, min(wanted - slots[number], spare // size))
        slots[number] += more
        spare -= more * size
    for number, (size, count) in enumerate(pools):  # what rounding left over
        more = min(count - slots[number], spare // size)
        slots[number] += more
        spare -= more * size
    return tuple((size, some) for (size, _), some in zip(pools, slots, strict=True))
