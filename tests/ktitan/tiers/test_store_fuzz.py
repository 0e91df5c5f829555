"""The store's decisions in C++ and Python on the same random traces: answers, slots, victims and counters are equal."""

import time

import pytest

from ktitan.native import native_reason
from ktitan.native.decisions import NativeAuto, NativeCycle, NativeResidency, NativeVram
from ktitan.tiers.reference import Auto, Cycle, Policy, Residency, Vram

from support.decision_traces import CycleTrace
from support.residency_traces import AutoTrace, ResidencyTrace
from support.vram_trace import VramTrace

TRACES = 1000

needs_library = pytest.mark.skipif(native_reason() is not None, reason=f"native library {native_reason()}")


def run_many(trace, *kinds, traces=TRACES):
    """Fresh traces; a failure says which one."""
    first = time.time_ns()
    for seed in range(first, first + traces):
        try:
            trace(seed).run(*kinds)
        except Exception as error:
            error.add_note(f"{trace.__name__}({seed})") if hasattr(error, "add_note") else print(f"seed {seed}")
            raise


@needs_library
def test_residency_in_both():
    run_many(ResidencyTrace, Residency, NativeResidency)


@needs_library
def test_auto_in_both_on_1000_traces():
    run_many(AutoTrace, Auto, NativeAuto)


@needs_library
def test_cycle_in_both():
    run_many(CycleTrace, Cycle, NativeCycle)


@needs_library
def test_vram_in_both_and_each_records_bytes_are_right_wherever_they_are():
    run_many(VramTrace, (Residency, Vram), (NativeResidency, NativeVram))


class YoungestLeaves(Residency):
    def _order(self, record):
        return [-number for number in super()._order(record)[1]]


class HeldLeaves(Residency):
    def _victim(self, domain):
        return min(domain.members, key=self._order, default=-1)


class PinsEverything(Residency):
    def pin(self, record, pinned):
        self._records[record].pinned = pinned
        return True


class GuessesDisplaceMembers(Residency):
    def _room_for_guest(self, number):
        found = super()._room_for_guest(number)
        for domain in self._domains:
            if found is None and domain.pool == number and (victim := self._victim(domain)) >= 0:
                self._leave(victim)
                return victim, -1
        return found


@pytest.mark.parametrize("mutant", [YoungestLeaves, HeldLeaves, PinsEverything])
def test_wrong_residency_is_found_by_the_trace_alone(mutant):
    with pytest.raises(AssertionError):
        run_many(ResidencyTrace, mutant, traces=200)


@needs_library
def test_a_guess_in_a_members_place_is_found_by_comparing():
    with pytest.raises((AssertionError, KeyError)):
        run_many(ResidencyTrace, GuessesDisplaceMembers, NativeResidency, traces=200)


class AnyLeadWins(Auto):
    def _compare(self):
        super()._compare()
        self._policy = max(self._candidates(), key=self._past_hits.__getitem__)


class AlwaysAdmitting(Auto):
    def __init__(self, spec):
        super().__init__(spec)
        self._policy = Policy.ADMITTING


@needs_library
@pytest.mark.parametrize("mutant", [AnyLeadWins, AlwaysAdmitting])
def test_a_wrong_choice_of_policies_is_found_by_comparing(mutant):
    with pytest.raises(AssertionError):
        run_many(AutoTrace, mutant, NativeAuto)


class OverReadsInFlight(Cycle):
    def _place(self, record):
        loading, self._loading = self._loading, set()
        placed = super()._place(record)
        self._loading = loading & {*self._ring, *range(self.pinned)}
        return placed


class OverTheHeldOne(Cycle):
    def _place(self, record):
        floor, self._floor = self._floor, self._stamps
        placed = super()._place(record)
        self._floor = floor
        return placed


class ForgetsToForget(Cycle):
    def _forget(self, record):
        self._ring.pop(record, None)
        if record not in self._there:
            super()._forget(record)


@pytest.mark.parametrize("mutant", [OverReadsInFlight, OverTheHeldOne, ForgetsToForget])
def test_a_wrong_cycle_is_found_by_the_trace_alone(mutant):
    with pytest.raises((AssertionError, KeyError)):
        run_many(CycleTrace, mutant, traces=100)


class StaleTable(Vram):
    def _leave(self, record):
        slot = self._table[record]
        left = super()._leave(record)
        self._table[record] = slot
        return left


class SlotOfTheVictimAtOnce(Vram):
    def _choose_victim(self, pool):
        before = len(self._leaving)
        super()._choose_victim(pool)
        for record in self._leaving[before:]:
            self._free[pool].append(self._slot[record])


class NoCopyOut(Vram):
    def _demote(self, record, pool):
        if not self._ram.free(pool):
            return False
        self._ram.acquire(record)
        self._ram.loaded(record)
        self._ram.release(record)
        return True


class DropsTheOnlyCopy(Vram):
    def _demote(self, record, pool):
        return super()._demote(record, pool) or not self._ram.free(pool)


@pytest.mark.parametrize("mutant", [StaleTable, SlotOfTheVictimAtOnce, NoCopyOut, DropsTheOnlyCopy])
def test_a_wrong_tier_is_found_by_its_bytes(mutant):
    with pytest.raises((AssertionError, KeyError, ValueError)):
        run_many(VramTrace, (Residency, mutant), traces=TRACES)


class YoungestLeavesVram(Vram):
    def _oldest(self, pool):
        return next(reversed(self._visible[pool]))


@needs_library
def test_a_wrong_order_of_victims_is_found_by_comparing():
    with pytest.raises(AssertionError):
        run_many(VramTrace, (Residency, YoungestLeavesVram), (NativeResidency, NativeVram), traces=100)
