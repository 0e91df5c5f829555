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
    "least_again",
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
    like: Shares | None = None,
) -> Shares:
    """Share `cache_bytes` out; `dense` and `rows` as in `cache_need`.

    Dense records come first: one that stays saves its bytes at every token, an expert's only when it is chosen.

    Args:
        like: shares of the same records before, whose domains stay.

    Raises:
        BudgetError: it is less than the least need.
    """
    sizes = [record.slot_bytes for record in pooled]
    need = cache_need(sizes, dense, rows)
    classes = _pools(sizes)
    pool_of = tuple(class_of(size, [size for size, _ in classes]) for size in sizes)
    layers = _layers(pool_of, pooled, len(classes))
    by_layer = [like is not None and _is_by_layer(number, layers[number], like) for number in range(len(classes))]
    least_slots = _least_slots(classes, layers, by_layer)
    least_pooled = sum(size * least for (size, _), least in zip(classes, least_slots, strict=True))
    least_bytes = least_pooled + least_cycle(dense) + need.row_bytes
    if cache_bytes < least_bytes:
        raise BudgetError(
            f"a cache of {format_bytes(cache_bytes)} for streamed weights that need {format_bytes(least_bytes)}",
            "ram",
            "raise the ram budget",
        )
    left = cache_bytes - need.row_bytes
    cycle = min(need.cycle_bytes, left - least_pooled) // PAGE_BYTES * PAGE_BYTES
    slots = _fill(classes, least_slots, left - cycle)
    pools = tuple(
        PoolShare(size, some, min(_spares(some, count, options), some - least))
        for (size, count), some, least in zip(classes, slots, least_slots, strict=True)
    )
    if like is None:
        by_layer = [_suits_layers(pool, records, options) for pool, records in zip(pools, layers, strict=True)]
    domain_of, domain_slots = _domains(pools, pool_of, pooled, layers, by_layer)
    return Shares(pools, pool_of, domain_of, domain_slots, cycle, need.row_bytes)


def least_again(pooled: Sequence[Pooled], dense: Sequence[int], rows: Sequence[int], like: Shares) -> int:
    """Least bytes that `share_out` takes with `like`: where layers have slots of their own, each needs one."""
    classes = _pools([record.slot_bytes for record in pooled])
    layers = _layers(like.pool_of, pooled, len(classes))
    by_layer = [_is_by_layer(number, layers[number], like) for number in range(len(classes))]
    slots = _least_slots(classes, layers, by_layer)
    least_pooled = sum(size * least for (size, _), least in zip(classes, slots, strict=True))
    return least_pooled + least_cycle(dense) + like.row_bytes


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


def _layers(pool_of: Sequence[int], pooled: Sequence[Pooled], classes: int) -> list[Counter[int]]:
    """Of each class, the records of each layer."""
    layers: list[Counter[int]] = [Counter() for _ in range(classes)]
    for number, record in zip(pool_of, pooled, strict=True):
        layers[number][record.layer] += 1
    return layers


def _is_by_layer(number: int, layers: Counter[int], shares: Shares) -> bool:
    """Whether each layer of class `number` has slots of its own."""
    domains = {domain for pool, domain in zip(shares.pool_of, shares.domain_of, strict=True) if pool == number}
    return len(domains) == len(layers)


def _suits_layers(pool: PoolShare, records: Counter[int], options: CacheOptions) -> bool:
    """Whether layers should have slots of their own: where there are enough of them, or that was chosen; never where
    one would have none.
    """
    least = min(_layer_shares(pool.slots - pool.spares, records).values())
    return least >= 1 and (options.scope == "layer" or (options.scope == "auto" and least >= LEAST_SLOTS))


def _least_slots(
    classes: Sequence[tuple[int, int]], layers: Sequence[Counter[int]], by_layer: Sequence[bool]
) -> list[int]:
    """Slots that each class has at least: one is computed with while the next one is read."""
    return [
        max(min(count, LEAST_SLOTS), len(records) if own else 0)
        for (_, count), records, own in zip(classes, layers, by_layer, strict=True)
    ]


def _fill(pools: Sequence[tuple[int, int]], least: Sequence[int], room: int) -> tuple[int, ...]:
    """Slots for each class in proportion to the bytes of its records, at least the least number of each."""
    total = sum(size * count for size, count in pools)
    slots = list(least)
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
    pools: Sequence[PoolShare],
    pool_of: Sequence[int],
    pooled: Sequence[Pooled],
    layers: Sequence[Counter[int]],
    by_layer: Sequence[bool],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Domain of each record, and slots of each domain: a layer's part of a class, or the whole class."""
    numbers: dict[tuple[int, int | None], int] = {}
    slots: list[int] = []
    for number, pool in enumerate(pools):
        members = pool.slots - pool.spares
        shares: list[tuple[int | None, int]] = [(None, members)]
        if by_layer[number]:
            shares = [*_layer_shares(members, layers[number]).items()]
        for layer, share in shares:
            numbers[number, layer] = len(slots)
            slots.append(share)
    domains = [
        numbers[number, record.layer if by_layer[number] else None]
        for number, record in zip(pool_of, pooled, strict=True)
    ]
    return tuple(domains), tuple(slots)


def _layer_shares(slots: int, records: Counter[int]) -> dict[int, int]:
    """Slots of each layer, in proportion to its records, and one at least where there are so many.

    What rounding leaves over goes to the first ones.
    """
    total = sum(records.values())
    shares = {layer: min(count, slots * count // total) for layer, count in records.items()}
    if min(shares.values()) < 1 and slots >= len(records):
        more, others = slots - len(records), max(1, total - len(records))
        shares = {layer: 1 + min(count - 1, more * (count - 1) // others) for layer, count in records.items()}
    spare = slots - sum(shares.values())
    for layer, count in records.items():
        more = min(count - shares[layer], spare, 1)
        shares[layer] += more
        spare -= more
    return shares
