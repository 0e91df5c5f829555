"""Which record is where: the rules one by one, in the reference and in C++."""

import pytest

from ktitan.errors import UnsupportedError
from ktitan.native import native_reason
from ktitan.native.decisions import NativeResidency
from ktitan.tiers.reference import Answer, Placed, Policy, Residency, ResidencySpec

HIT, MISS, LOADING, FULL = Answer


@pytest.fixture(params=[Residency, NativeResidency])
def kind(request):
    if request.param is NativeResidency and native_reason() is not None:
        pytest.skip(f"native library {native_reason()}")

    def make(pool_slots, record_pool, *more, policy=Policy.LRU, growth=1.0):
        return request.param(ResidencySpec(pool_slots, record_pool, *more, policy=policy, growth=growth))

    return make


def take(residency, record, tokens=1):
    """Answer, slot and victim."""
    return residency.acquire(record, tokens)[:3]


def use(residency, *records, tokens=1):
    """Each of them is used up; their answers."""
    answers = [residency.acquire(record, tokens) for record in records]
    for record in records:
        residency.loaded(record)
        residency.release(record)
    return [Placed(*answer) for answer in answers]


def there(residency, records):
    return [record for record in range(records) if residency.has(record)]


def test_slots_come_in_order_and_the_least_recently_acquired_leaves(kind):
    residency = kind([3], [0] * 6)
    assert [take(residency, record) for record in (4, 2, 0)] == [(MISS, 0, -1), (MISS, 1, -1), (MISS, 2, -1)]
    for record in (0, 2, 4):  # the order of releasing decides nothing
        residency.loaded(record)
        residency.release(record)
    use(residency, 4)
    assert take(residency, 5) == (MISS, 1, 2)
    assert take(residency, 1) == (MISS, 2, 0)


def test_what_is_held_stays(kind):
    residency = kind([2], [0] * 4)
    use(residency, 0)
    assert take(residency, 0)[0] == take(residency, 0)[0] == HIT
    residency.release(0)
    use(residency, 1)
    assert take(residency, 2) == (MISS, 1, 1)
    assert take(residency, 3) == (FULL, -1, -1)
    assert [residency.evict(record) for record in (0, 1, 2)] == [False] * 3
    residency.release(0)
    assert take(residency, 3) == (MISS, 0, 0)


def test_what_is_being_read_is_held_even_when_it_is_released(kind):
    residency = kind([1], [0] * 2)
    take(residency, 0)
    residency.release(0)
    assert take(residency, 1)[0] == FULL and not residency.evict(0)
    assert take(residency, 0)[0] == LOADING
    residency.loaded(0)
    residency.release(0)
    assert take(residency, 1) == (MISS, 0, 0)


def test_a_failed_read_gives_the_slot_back(kind):
    residency = kind([2], [0] * 3)
    take(residency, 0), take(residency, 0), take(residency, 1)
    residency.failed(0)
    assert (residency.has(0), residency.slot(0), residency.count(), residency.free(0)) == (False, -1, 1, 1)
    assert take(residency, 2) == (MISS, 0, -1)
    assert take(residency, 0)[0] == FULL


def test_pools_do_not_mix(kind):
    residency = kind([1, 2], [0, 1, 0, 1, 1])
    use(residency, 0, 1, 3)
    assert take(residency, 2) == (MISS, 0, 0)
    assert take(residency, 4) == (MISS, 0, 1)
    assert residency.slot(3) == 1


def test_fresh_slots_come_before_those_that_came_free(kind):
    residency = kind([4], [0] * 8)
    use(residency, 0, 1, 2)
    assert residency.evict(0) and residency.evict(2)
    assert [take(residency, record)[1] for record in (5, 6, 7)] == [3, 2, 0]


def test_a_record_that_was_acquired_again_is_protected(kind):
    residency = kind([5], [0] * 8, policy=Policy.SLRU)
    use(residency, 0, 1, 2, 3, 4)
    use(residency, 0, 1)
    assert [take(residency, record)[2] for record in (5, 6)] == [2, 3]
    use(residency, 5, 6)


def test_of_five_slots_four_are_protected_at_most(kind):
    residency = kind([5], [0] * 8, policy=Policy.SLRU)
    use(residency, 0, 1, 2, 3, 4)
    use(residency, 0, 1, 2, 3, 4)
    assert take(residency, 5)[2] == 0  # the least recently acquired of the protected ones made room for 4


def test_frequency_and_its_three_memories(kind):
    def left(policy, growth=1.0):
        residency = kind([2], [0] * 3, policy=policy, growth=growth)
        residency.step(1)
        use(residency, 0, tokens=4)
        residency.step(1)
        residency.sequence()
        residency.step(1)
        use(residency, 1, tokens=2)
        return take(residency, 2)[2]

    assert left(Policy.LFU) == left(Policy.DECAYED_LFU) == 1
    assert left(Policy.DECAYED_LFU, growth=2.0) == left(Policy.SEQUENCE_LFU) == 0


def test_tokens_of_a_long_step_count_less_the_earlier_they_are(kind):
    residency = kind([2], [0] * 3, policy=Policy.DECAYED_LFU, growth=2.0)
    residency.step(4)
    use(residency, 0, tokens=4)
    assert residency.score(0) == 4 * (1 + 1 / 2 + 1 / 4 + 1 / 8) / 4
    for _ in range(5):
        residency.step(100000)  # what counts so much is counted anew
    assert residency.score(0) == 0


def test_what_counts_too_little_is_a_guest_and_lingers(kind):
    residency = kind([3], [0] * 6, [1], policy=Policy.ADMITTING)
    use(residency, 0, 1, tokens=5)
    assert use(residency, 2, tokens=3)[0][2:] == (-1, -1, False, True)
    assert use(residency, 3, tokens=1)[0][2:] == (2, -1, False, True)  # the guest that counts least makes room
    came = use(residency, 2, tokens=1)[0]  # 4 of 5: admitted
    assert (came.answer, came.victim, came.guest) == (MISS, 3, False)
    assert there(residency, 6) == [0, 1, 2]


def test_a_guest_that_counts_enough_becomes_a_member_and_nothing_leaves(kind):
    residency = kind([3], [0] * 6, [1], policy=Policy.ADMITTING)
    use(residency, 0, 1, tokens=5)
    use(residency, 2, tokens=3)
    assert use(residency, 2, tokens=2)[0] == Placed(HIT, 2)
    assert there(residency, 6) == [0, 1, 2]
    assert use(residency, 3, tokens=1)[0].victim == 0  # which lingers in its place


def test_a_guess_takes_a_spare_slot_and_never_a_members(kind):
    residency = kind([3], [0] * 6, [1])
    use(residency, 0, 1)
    assert Placed(*residency.guess(2)) == Placed(MISS, 2, guest=True)
    assert residency.guess(2)[0] == HIT and residency.guess(3)[0] == FULL  # 2 is on its way
    residency.loaded(2)
    assert Placed(*residency.guess(3)) == Placed(MISS, 2, displaced=2, guest=True)
    assert Placed(*residency.acquire(3)) == Placed(LOADING, 2, foreseen=True)
    assert there(residency, 6) == [0, 1, 3]


def test_a_used_guess_is_a_member_and_the_first_use_does_not_protect_it(kind):
    residency = kind([5], [0] * 8, [1], policy=Policy.SLRU)
    use(residency, 0, 1, 2, 3)
    use(residency, 0, 1, 2)
    residency.guess(4)
    residency.loaded(4)
    assert use(residency, 4)[0].foreseen
    residency.evict(3)  # who lingers
    residency.guess(5), residency.loaded(5)
    assert use(residency, 5)[0].foreseen
    assert there(residency, 8) == [0, 1, 2, 4, 5]
    assert Placed(*residency.guess(6)).victim == 4  # a guest again, since 5 came


def test_pins_stay_are_admitted_and_never_take_more_than_half(kind):
    residency = kind([4], [0] * 8, policy=Policy.PINNED)
    assert [residency.pin(record, True) for record in (0, 1, 2)] == [True, True, False]
    use(residency, 2, 3, 4, 5, tokens=100)
    assert [use(residency, record, tokens=0)[0].guest for record in (0, 1)] == [False, False]
    for record in (6, 7, 2, 3, 4):
        use(residency, record, tokens=1000)
    assert {0, 1} < {*there(residency, 8)}
    residency.set_policy(Policy.LRU)
    use(residency, 5, 6, 7, 2)
    assert there(residency, 8) == [2, 5, 6, 7]


def test_domains_of_a_pool_have_their_own_slots(kind):
    residency = kind([4], [0] * 8, None, [0] * 4 + [1] * 4, [3, 1])
    use(residency, 0, 1, 2, 4)
    assert use(residency, 5)[0].victim == 4 and use(residency, 3)[0].victim == 0
    assert use(residency, 7)[0].victim == 5


def test_a_seed_counts_until_it_has_decayed(kind):
    residency = kind([2], [0] * 3, policy=Policy.DECAYED_LFU, growth=2.0)
    residency.seed(0, 6.0)
    use(residency, 0, tokens=0)
    use(residency, 1)
    assert use(residency, 2)[0].victim == 1
    residency.seed(1, float("nan")), residency.seed(0, float("inf"))
    assert residency.score(1) == 0 and residency.score(0) == 2.0**60


def test_a_smaller_pool_keeps_who_counts_and_moves_them_down(kind):
    residency = kind([6], [0] * 8, [1], policy=Policy.LFU)
    for record in range(5):
        use(residency, record, tokens=1 + record)
    residency.guess(7)
    assert residency.resize([3], [0], None) is None  # it is on its way
    residency.loaded(7)
    assert residency.resize([3], [3], None) is None
    assert residency.resize([3], [0], [3]) is None  # its domains are its pools
    assert residency.resize([3], [0], None) == [(3, 3, 0), (4, 4, 1)]
    assert there(residency, 8) == [2, 3, 4] and residency.slot(2) == 2
    assert residency.resize([8], [1], None) == []
    assert [use(residency, record)[0].slot for record in (0, 1)] == [3, 4]


@pytest.mark.skipif(native_reason() is not None, reason="no native library")
@pytest.mark.parametrize(("slots", "pools"), [([0], [0]), ([1], [1]), ([1], [-2]), ([], [0])])
def test_sizes_that_cannot_be(slots, pools):
    with pytest.raises(UnsupportedError):
        NativeResidency(ResidencySpec(slots, pools))
