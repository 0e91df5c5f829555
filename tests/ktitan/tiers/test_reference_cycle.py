"""The cycle of dense records: what stays, how the ring is used, and that the drive has work all the time."""

import random
import time

import pytest

from ktitan.errors import UnsupportedError
from ktitan.native import native_reason
from ktitan.native.decisions import NativeCycle, cycle_least
from ktitan.tiers.pools import least_cycle
from ktitan.tiers.reference import Cycle, CycleAnswer

PAGE = 4096
HIT, LOADING, MISS, BUSY = CycleAnswer


@pytest.fixture(params=[Cycle, NativeCycle])
def kind(request):
    if request.param is NativeCycle and native_reason() is not None:
        pytest.skip(f"native library {native_reason()}")
    return request.param


def read_ahead(cycle):
    read = []
    while (found := cycle.ahead()) is not None:
        cycle.loaded(found[0])
        read.append(found[0])
    return read


def use(cycle, record):
    """The first answer to a demand, and what was read ahead when it was used."""
    first = cycle.demand(record)[0]
    if first != HIT:
        cycle.loaded(record)
        assert cycle.demand(record)[0] == HIT
    cycle.release(record)
    return first, read_ahead(cycle)


def test_everything_stays_where_it_fits(kind):
    cycle = kind([PAGE, 3 * PAGE, 2 * PAGE], 6 * PAGE)
    assert (cycle.pinned, cycle.ring_bytes) == (3, 0)
    assert [cycle.demand(0), cycle.ahead(), cycle.ahead()] == [(MISS, 0), (1, PAGE), (2, 4 * PAGE)]
    assert cycle.ahead() is None


def test_a_part_stays_and_the_ring_has_at_least_two_neighbours(kind):
    sizes = [PAGE] * 40
    cycle = kind(sizes, 32 * PAGE)
    assert (cycle.pinned, cycle.ring_bytes) == (28, 4 * PAGE)  # an eighth
    small = kind(sizes, 9 * PAGE)
    assert (small.pinned, small.ring_bytes) == (7, 2 * PAGE)
    uneven = kind([PAGE, PAGE, PAGE, 5 * PAGE, 2 * PAGE], 9 * PAGE)
    assert (uneven.pinned, uneven.ring_bytes) == (2, 7 * PAGE)


def test_a_large_ring_is_not_needed(kind):
    sizes = [64 << 20] * 100
    cycle = kind(sizes, 64 * (64 << 20))
    assert (cycle.pinned, cycle.ring_bytes) == (60, 256 << 20)


def test_in_the_usual_order_nothing_is_waited_for_and_the_drive_never_rests(kind):
    """Each use of a record that passes through makes room for one more, also across the end of the cycle."""
    cycle = kind([PAGE] * 10, 6 * PAGE)
    assert cycle.pinned == 4
    assert read_ahead(cycle) == [0, 1, 2, 3, 4, 5]
    ahead = {record: use(cycle, record) for record in range(10)}
    assert {record: answer for record, (answer, _) in ahead.items()} == dict.fromkeys(range(10), HIT)
    assert [read for _, read in ahead.values()] == [[], [], [], [], [6], [7], [8], [9], [4], [5]]
    assert [use(cycle, record) for record in range(10)] == list(ahead.values())


def test_the_order_is_learned(kind):
    shuffle = random.Random(time.time_ns())
    order = list(range(16))
    shuffle.shuffle(order)
    cycle = kind([PAGE] * 16, 8 * PAGE)
    for _ in range(3):
        answers = [use(cycle, record)[0] for record in order]
    assert answers == [HIT] * 16, order


def test_a_jump_starts_the_ring_there_and_reads_on_their_way_are_not_overwritten(kind):
    cycle = kind([PAGE] * 10, 2 * PAGE)
    assert cycle.demand(0)[0] == MISS and cycle.ahead()[0] == 1 and cycle.ahead() is None
    assert cycle.demand(5) == (BUSY, -1)
    assert cycle.ahead() is None  # what is waited for comes first
    cycle.loaded(0)
    assert cycle.demand(5) == (MISS, 0)
    assert cycle.ahead() is None
    cycle.loaded(1)
    assert cycle.ahead() == (6, PAGE)
    assert cycle.demand(5)[0] == LOADING
    cycle.loaded(5)
    assert cycle.demand(5) == (HIT, 0)


def test_what_is_skipped_makes_room(kind):
    cycle = kind([PAGE] * 10, 3 * PAGE)
    assert cycle.pinned == 1 and use(cycle, 0) == (MISS, [1, 2])
    assert use(cycle, 2) == (HIT, [3, 4])


def test_a_held_record_stays_where_it_is(kind):
    cycle = kind([PAGE] * 10, 2 * PAGE)
    use(cycle, 0)
    _, at = cycle.demand(1)
    assert at == PAGE and cycle.ahead() is None  # 2 is at 0
    assert cycle.demand(2) == (BUSY, -1)  # one at a time
    cycle.release(1)
    assert cycle.ahead() == (3, PAGE)


def test_a_failed_read_frees_its_place_and_is_not_tried_again_at_once(kind):
    cycle = kind([PAGE] * 10, 2 * PAGE)
    assert cycle.demand(0) == (MISS, 0)
    assert cycle.ahead() == (1, PAGE)
    cycle.failed(1)
    cycle.loaded(0)
    assert cycle.ahead() is None and use(cycle, 0)[1] == []
    assert cycle.demand(1) == (MISS, PAGE)
    cycle.failed(1)
    assert cycle.demand(1)[0] == MISS


def test_places_wrap_without_tearing_a_record(kind):
    cycle = kind([2 * PAGE] * 9, 5 * PAGE)
    places = []
    for record in (*range(9), *range(9)):
        if cycle.demand(record)[0] == MISS:
            cycle.loaded(record)
            cycle.demand(record)
        cycle.release(record)
        places.append(cycle.demand(record))
        cycle.release(record)
        read_ahead(cycle)
    assert (cycle.pinned, cycle.ring_bytes) == (0, 5 * PAGE)
    assert places == [(HIT, 0), (HIT, 2 * PAGE)] * 9


def test_dropping_forgets_all_but_what_is_held(kind):
    cycle = kind([PAGE] * 4, 4 * PAGE)
    for record in range(4):
        use(cycle, record)
    cycle.demand(3)
    cycle.drop()
    cycle.release(3)
    assert cycle.demand(3)[0] == HIT
    cycle.release(3)
    assert cycle.demand(2)[0] == MISS


@pytest.mark.skipif(native_reason() is not None, reason="no native library")
def test_least_capacity():
    rng = random.Random(time.time_ns())
    for _ in range(200):
        sizes = [PAGE * rng.randint(1, 9) for _ in range(rng.randint(0, 6))]
        assert cycle_least(sizes) == least_cycle(sizes)
        NativeCycle(sizes, least_cycle(sizes))
        if sizes:
            with pytest.raises(UnsupportedError):
                NativeCycle(sizes, least_cycle(sizes) - 1)
    for wrong in ([PAGE + 1], [0], [-PAGE]):
        with pytest.raises(UnsupportedError):
            NativeCycle(wrong, 1 << 30)
