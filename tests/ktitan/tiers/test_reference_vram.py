"""The tier above RAM: promotions, victims and the published table, in the reference and in C++."""

import pytest

from ktitan.errors import UnsupportedError
from ktitan.native import native_reason
from ktitan.native.decisions import NativeResidency, NativeVram
from ktitan.tiers.reference import Residency, ResidencySpec, Vram, VramAnswer
from ktitan.tiers.reference.vram import VramSpec

from support.vram_trace import Machine

PROMOTED, THERE, ABSENT, FULL, FAILED = VramAnswer


@pytest.fixture(params=[(Residency, Vram), (NativeResidency, NativeVram)])
def make(request):
    """`make(ram_slots, vram_slots, spares, ...)` -> a machine with 10 records of one pool."""
    if request.param[0] is NativeResidency and native_reason() is not None:
        pytest.skip(f"native library {native_reason()}")

    def made(ram, vram, spares, on_drive=True, inclusive=False):
        spec = VramSpec([vram], [spares], [0] * 10, [on_drive] * 10, inclusive)
        return Machine(*request.param, [ram], spec)

    return made


def use(machine, *records):
    for record in records:
        if machine.ram.acquire(record)[0] == 1:
            machine.ram.loaded(record)
        machine.ram.release(record)


def promote(machine, *records):
    """In a step of their own."""
    answers = [machine.tier.promote(record) for record in records]
    machine.tier.publish()
    return answers


def counted(machine):
    counters = machine.counters()
    return tuple(counters[name] for name in ("promotions", "demotions", "drops", "kept"))


def test_a_promotion_is_visible_after_the_publish_and_then_leaves_ram(make):
    machine = make(4, 3, 1)
    use(machine, 5)
    assert machine.tier.promote(5) == PROMOTED
    assert (machine.tier.use(5), machine.ram.slot(5), machine.ram.evict(5)) == (-1, 0, False)
    assert machine.tier.promote(5) == THERE
    assert machine.tier.publish() == 1
    assert (machine.tier.use(5), machine.ram.has(5), machine.tier.table()[5]) == (0, False, 0)


def test_a_victim_goes_to_the_ram_slot_that_the_promoted_record_left(make):
    machine = make(2, 2, 1)
    use(machine, 0, 1)
    promote(machine, 0)
    use(machine, 2)  # RAM is full again
    slot = machine.ram.slot(1)
    assert machine.tier.promote(1) == PROMOTED
    assert machine.tier.use(0) == 0  # until the publish
    assert machine.tier.publish() == 2
    assert (machine.tier.use(0), machine.tier.use(1), machine.ram.slot(0)) == (-1, 1, slot)
    assert counted(machine) == (2, 1, 0, 0)
    assert machine.device.log == [("in", 0, 0, 0), ("in", 0, 1, slot), ("out", 0, 0, slot)]


def test_the_least_recently_used_record_leaves(make):
    machine = make(4, 4, 1)
    for record in range(3):
        use(machine, record)
        promote(machine, record)
    machine.tier.use(0)
    use(machine, 3)
    promote(machine, 3)
    assert [machine.tier.use(record) >= 0 for record in range(4)] == [True, False, True, True]


def test_a_record_that_both_tiers_have_is_dropped_without_a_copy(make):
    machine = make(4, 2, 1, inclusive=True)
    use(machine, 0, 1)
    promote(machine, 0)
    promote(machine, 1)
    assert counted(machine) == (2, 0, 1, 0)
    assert machine.ram.has(0) and machine.ram.has(1)


def test_with_ram_full_a_victim_is_dropped_if_its_home_is_the_drive(make):
    machine = make(1, 2, 1, inclusive=True)
    for record in (0, 1):
        use(machine, record)
        promote(machine, record)
    assert counted(machine) == (2, 0, 1, 0) and not machine.ram.has(0)


def test_with_ram_full_a_victim_stays_if_nothing_else_has_its_bytes(make):
    machine = make(1, 2, 1, on_drive=False, inclusive=True)
    for record in (0, 1):
        use(machine, record)
        promote(machine, record)
    assert counted(machine) == (2, 0, 0, 1)
    assert [machine.tier.use(record) for record in (0, 1)] == [0, 1]


def test_no_more_promotions_in_a_step_than_slots_that_the_table_does_not_name(make):
    machine = make(6, 4, 2)
    use(machine, 0, 1, 2, 3)
    assert promote(machine, 0, 1, 2) == [PROMOTED] * 3
    use(machine, 4, 5)
    assert machine.tier.free(0) == 1
    assert [machine.tier.promote(record) for record in (3, 4)] == [PROMOTED, FULL]
    machine.tier.publish()
    assert machine.tier.free(0) == 2
    assert machine.tier.promote(4) == PROMOTED


def test_without_spare_slots_a_promotion_waits_for_the_next_step(make):
    machine = make(4, 1, 0)
    use(machine, 0, 1)
    assert promote(machine, 0) == [PROMOTED]
    assert promote(machine, 1) == [FULL]
    assert (machine.tier.table()[0], machine.ram.has(0)) == (-1, True)
    assert promote(machine, 1) == [PROMOTED]


def test_a_victim_that_is_wanted_again_stays(make):
    machine = make(4, 2, 1)
    use(machine, 0, 1)
    promote(machine, 0)
    assert [machine.tier.promote(record) for record in (1, 0)] == [PROMOTED, THERE]
    machine.tier.publish()
    assert [machine.tier.use(record) for record in (0, 1)] == [0, 1]


def test_what_is_not_filled_is_not_promoted(make):
    machine = make(4, 2, 1)
    assert machine.tier.promote(0) == ABSENT
    machine.ram.acquire(0)
    assert machine.tier.promote(0) == ABSENT
    machine.ram.loaded(0)
    assert machine.tier.promote(0) == PROMOTED


def test_a_copy_that_fails_changes_nothing(make):
    machine = make(2, 2, 1, on_drive=False)
    use(machine, 0, 1)
    machine.device.fails = True
    assert machine.tier.promote(0) == FAILED and machine.ram.evict(0)
    machine.device.fails = False
    use(machine, 0)
    promote(machine, 0)
    assert machine.tier.promote(1) == PROMOTED
    machine.device.fails = True
    machine.tier.publish()
    assert counted(machine) == (2, 0, 0, 1) and machine.tier.use(0) == 0


@pytest.mark.skipif(native_reason() is not None, reason="no native library")
@pytest.mark.parametrize(("slots", "spares"), [(2, 2), (-1, 0), (2, -1), (0, 1)])
def test_sizes_that_cannot_be(slots, spares):
    ram = NativeResidency(ResidencySpec([2], [0]))
    with pytest.raises(UnsupportedError):
        NativeVram(ram, VramSpec([slots], [spares], [0], [True]), None)
