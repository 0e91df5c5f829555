"""How the cache is shared out: size classes for experts, a cycle for dense layers, buffers for rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ktitan.errors import BudgetError
from ktitan.tiers.budget import format_bytes
from ktitan.tiers.options import AUTOMATIC, CacheOptions
from ktitan.tiers.record import PAGE_BYTES, round_up

__all__ = [
    "CacheNeed",
    "PoolShare",
    "Pooled",
    "Shares",
    "cache_need",
    "class_of",
    "class_sizes",
    "least_cycle",
    "share_out",
]

# Of a slot at most this part stays unused by the smallest record of its class.
MOST_WASTE = 0.03
# Slots that a size class has at least: one is computed with while the next one is read.
LEAST_SLOTS = 2
# Spare slots of a class: two calls' worth of guesses for most models, and at most this part of its slots.
MOST_SPARES = 16
SPARE_SHARE = 12
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
class Pooled:
    """An expert's record as far as sharing out goes: bytes of its slot, and the layer that it belongs to."""

    slot_bytes: int
    layer: int


@dataclass(frozen=True)
class PoolShare:
    """A size class: bytes of a slot, slots, and how many of these are spare (csrc/tiers/residency.h)."""

    slot_bytes: int
    slots: int
    spares: int = 0


@dataclass(frozen=True)
class Shares:
    """A cache shared out.

    Attributes:
        pools: the size classes.
        pool_of, domain_of: class and domain of each pooled record.
        domain_slots: most members of each domain.
        cycle_bytes: for dense records.
        row_bytes: for buffers of rows.
    """

    pools: tuple[PoolShare, ...]
    pool_of: tuple[int, ...]
    domain_of: tuple[int, ...]
    domain_slots: tuple[int, ...]
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


def share_out(
    cache_bytes: int,
    pooled: Sequence[Pooled],
    dense: Sequence[int],
    rows: Sequence[int],
    options: CacheOptions = AUTOMATIC,
) -> Shares:
    """Share `cache_bytes` out; `dense` and `rows` as in `cache_need`.

    Dense records come first: one that stays saves its bytes at every token, an expert's only when it is chosen.

    Raises:
        BudgetError: it is less than the least need.
    """
    sizes = [record.slot_bytes for record in pooled]
    need = cache_need(sizes, dense, rows)
    if cache_bytes < need.least_bytes:
        raise BudgetError(
            f"a cache of {format_bytes(cache_bytes)} for streamed weights that need {format_bytes(need.least_bytes)}",
            "ram",
            "raise the ram budget",
        )
    classes = _pools(sizes)
    least_pooled = sum(size * min(count, LEAST_SLOTS) for size, count in classes)
    left = cache_bytes - need.row_bytes
    cycle = min(need.cycle_bytes, left - least_pooled) // PAGE_BYTES * PAGE_BYTES
    slots = _fill(classes, left - cycle)
    pools = tuple(
        PoolShare(size, some, _spares(some, count, options)) for (size, count), some in zip(classes, slots, strict=True)
    )
    pool_of = tuple(class_of(size, [size for size, _ in classes]) for size in sizes)
    domain_of, domain_slots = _domains(pools, pool_of, pooled, options)
    return Shares(pools, pool_of, domain_of, domain_slots, cycle, need.row_bytes)


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


def _fill(pools: Sequence[tuple[int, int]], room: int) -> tuple[int, ...]:
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
    return tuple(slots)


def _spares(slots: int, records: int, options: CacheOptions) -> int:
    """Of a class's slots, those for guests; none where every record has a slot."""
    return min(MOST_SPARES, slots // SPARE_SHARE) if options.has_guests and slots < records else 0


def _domains(
    pools: Sequence[PoolShare], pool_of: Sequence[int], pooled: Sequence[Pooled], options: CacheOptions
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Domain of each record, and slots of each domain: a layer's part of a class, or the whole class."""
    layers: dict[int, Counter[int]] = {number: Counter() for number in range(len(pools))}
    for number, record in zip(pool_of, pooled, strict=True):
        layers[number][record.layer] += 1
    numbers: dict[tuple[int, int | None], int] = {}
    slots: list[int] = []
    for number, pool in enumerate(pools):
        members = pool.slots - pool.spares
        shares = _layer_shares(members, layers[number])
        by_layer = options.scope == "layer" or (options.scope == "auto" and min(shares.values()) >= LEAST_SLOTS)
        # Not even one slot a layer: they must share.
        if not by_layer or min(shares.values()) < 1:
            numbers[number, None] = len(slots)
            slots.append(members)
            continue
        for layer, share in shares.items():
            numbers[number, layer] = len(slots)
            slots.append(share)
    domains = [
        numbers[number, None if (number, None) in numbers else record.layer]
        for number, record in zip(pool_of, pooled, strict=True)
    ]
    return tuple(domains), tuple(slots)


def _layer_shares(slots: int, records: Counter[int]) -> dict[int, int]:
    """Slots of each layer, in proportion to its records; what rounding leaves over goes to the first ones."""
    total = sum(records.values())
    shares = {layer: min(count, slots * count // total) for layer, count in records.items()}
    spare = slots - sum(shares.values())
    for layer, count in records.items():
        more = min(count - shares[layer], spare, 1)
        shares[layer] += more
        spare -= more
    return shares
