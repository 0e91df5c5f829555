"""Which record is where: the rules one by one, in the reference and in C++."""

import pytest

from ktitan.errors import UnsupportedError
from ktitan.native import native_reason
from ktitan.native.decisions import NativeResidency
from ktitan.tiers.reference import Answer, Residency

HIT, MISS, LOADING, FULL = Answer


@pytest.fixture(params=[Residency, NativeResidency])
def kind(request):
    if request.param is NativeResidency and native_reason() is not None:
        pytest.skip(f"native library {native_reason()}")
    return request.param


def use(residency, *records):
    for record in records:
        if residency.acquire(record)[0] == MISS:
            residency.loaded(record)
        residency.release(record)


def test_slots_come_in_order_and_the_least_recently_acquired_leaves(kind):
    residency = kind([3], [0] * 6)
    assert [residency.acquire(record) for record in (4, 2, 0)] == [(MISS, 0, -1), (MISS, 1, -1), (MISS, 2, -1)]
    for record in (0, 2, 4):  # the order of releasing decides nothing
        residency.loaded(record)
        residency.release(record)
    use(residency, 4)
    assert residency.acquire(5) == (MISS, 1, 2)
    assert residency.acquire(1) == (MISS, 2, 0)


def test_what_is_held_stays(kind):
    residency = kind([2], [0] * 4)
    use(residency, 0)
    assert residency.acquire(0)[0] == residency.acquire(0)[0] == HIT
    residency.release(0)
    use(residency, 1)
    assert residency.acquire(2) == (MISS, 1, 1)
    assert residency.acquire(3) == (FULL, -1, -1)
    assert [residency.evict(record) for record in (0, 1, 2)] == [False] * 3
    residency.release(0)
    assert residency.acquire(3) == (MISS, 0, 0)


def test_what_is_being_read_is_held_even_when_it_is_released(kind):
    residency = kind([1], [0] * 2)
    residency.acquire(0)
    residency.release(0)
    assert residency.acquire(1)[0] == FULL and not residency.evict(0)
    assert residency.acquire(0)[0] == LOADING
    residency.loaded(0)
    residency.release(0)
    assert residency.acquire(1) == (MISS, 0, 0)


def test_a_failed_read_gives_the_slot_back(kind):
    residency = kind([2], [0] * 3)
    residency.acquire(0), residency.acquire(0), residency.acquire(1)
    residency.failed(0)
    assert (residency.has(0), residency.slot(0), residency.count(), residency.free(0)) == (False, -1, 1, 1)
    assert residency.acquire(2) == (MISS, 0, -1)
    assert residency.acquire(0)[0] == FULL


def test_pools_do_not_mix(kind):
    residency = kind([1, 2], [0, 1, 0, 1, 1])
    use(residency, 0, 1, 3)
    assert residency.acquire(2) == (MISS, 0, 0)
    assert residency.acquire(4) == (MISS, 0, 1)
    assert residency.slot(3) == 1


def test_fresh_slots_come_before_those_that_came_free(kind):
    residency = kind([4], [0] * 8)
    use(residency, 0, 1, 2)
    assert residency.evict(0) and residency.evict(2)
    assert [residency.acquire(record)[1] for record in (5, 6, 7)] == [3, 2, 0]


@pytest.mark.skipif(native_reason() is not None, reason="no native library")
@pytest.mark.parametrize(("slots", "pools"), [([0], [0]), ([1], [1]), ([1], [-1]), ([], [0])])
def test_sizes_that_cannot_be(slots, pools):
    with pytest.raises(UnsupportedError):
        NativeResidency(slots, pools)
