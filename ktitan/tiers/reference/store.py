"""The store without bytes: residency and cycle joined as csrc/tiers/store.cpp joins them, and what it counts."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

from ktitan.tiers.reference.chooser import Chooser, LayerRecord
from ktitan.tiers.reference.cycle import Cycle, CycleAnswer
from ktitan.tiers.reference.policies import Policy
from ktitan.tiers.reference.residency import Answer, Placed, Residency, ResidencySpec

__all__ = ["AUTO", "Counters", "ReferenceStore", "StoreSpec", "Wave"]

# KT_POLICY_AUTO: the policy that measures best.
AUTO = -1
# Steps of more tokens than that read a prompt.
MOST_DECODED = 8
# Of what a prompt's call needs, so much is asked for at once (csrc/tiers/store.cpp).
BYTES_AT_ONCE = 32 << 20
LEAST_MISSES = 4


@dataclass
class Counters:
    """What happened, by the names of `kt_store_counters`; `read_bytes` are whole slots."""

    demands: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    waves: int = 0
    steps: int = 0
    tokens: int = 0
    sequences: int = 0
    passed: int = 0
    policy: int = 0
    policy_changes: int = 0
    guesses: int = 0
    guesses_used: int = 0
    guesses_late: int = 0
    guesses_wasted: int = 0
    read_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Wave:
    """Records that are held at once, and their slots.

    Attributes:
        hits: those that were there, in the order of demand.
        misses: those that are read, in the order of demand.
        victims: those that made room, in the order in which they did.
        slots: of hits and misses.
    """

    hits: tuple[int, ...]
    misses: tuple[int, ...]
    victims: tuple[int, ...]
    slots: dict[int, int]


@dataclass(frozen=True)
class StoreSpec:
    """What a store is made of.

    Attributes:
        record_pool: the pool of each record; -1: a dense one, part of the cycle in the order of the records.
        slot_bytes: bytes of each record's slot.
        pool_slots: slots of each pool.
        cycle_bytes: memory of the cycle.
        pool_spares: of the slots, those for guests; none given: none.
        record_domain: the domain of each record; none given: the records of a pool are a domain.
        domain_slots: most members of each domain, with `record_domain`.
        record_layer: the layer of each record, counting those with experts; none given: that of the pool's number.
        policy: who makes room, or `AUTO`.
        growth: what a token counts more than the one before it.
    """

    record_pool: Sequence[int]
    slot_bytes: Sequence[int]
    pool_slots: Sequence[int]
    cycle_bytes: int = 0
    pool_spares: Sequence[int] = ()
    record_domain: Sequence[int] = ()
    domain_slots: Sequence[int] = ()
    record_layer: Sequence[int] = ()
    policy: int = Policy.LRU
    growth: float = 1.0


class ReferenceStore:
    """Records that come and go; reads take no time."""

    def __init__(self, spec: StoreSpec) -> None:
        kinds = [pool >= 0 for pool in spec.record_pool]
        self._dense = [record for record, pooled in enumerate(kinds) if not pooled]
        self._pooled = [record for record, pooled in enumerate(kinds) if pooled]
        # Dense records and pooled ones are numbered on their own below.
        self._number = {record: n for records in (self._dense, self._pooled) for n, record in enumerate(records)}
        self._slot_bytes = tuple(spec.slot_bytes)
        pools = list(compress(spec.record_pool, kinds))
        domains = list(compress(spec.record_domain, kinds)) or pools
        spares = spec.pool_spares or [0] * len(spec.pool_slots)
        shares = spec.domain_slots or [slots - spare for slots, spare in zip(spec.pool_slots, spares, strict=True)]
        policy = max(spec.policy, Policy.LRU)
        self.residency = Residency(ResidencySpec(spec.pool_slots, pools, spares, domains, shares, policy, spec.growth))
        self.cycle = Cycle([spec.slot_bytes[record] for record in self._dense], spec.cycle_bytes)
        self.counters = Counters(policy=policy)
        layers = list(compress(spec.record_layer, kinds)) or pools
        self._chooser = Chooser([LayerRecord(*one) for one in zip(layers, domains, strict=True)], spec.growth)
        self._chooses = spec.policy == AUTO
        if self._chooses:
            self._chooser.share_out(spec.pool_slots, spares, shares)
        self._last_first, self._in_prompt = -1, False

    def begin(self, first_record: int, tokens: int) -> None:
        """A call for a layer's experts begins; the first layer, which is the one with no higher number, begins a step.

        Args:
            first_record: of the layer.
            tokens: of the step. More than a few after a step of few begin a sequence.
        """
        first = self._last_first < 0 or first_record <= self._last_first
        self._last_first = first_record
        if self._chooses:
            self._choose_policy()
        if not first:
            return
        prompt = tokens > MOST_DECODED
        if prompt and not self._in_prompt:
            self.counters.sequences += 1
            self.residency.sequence()
            self._chooser.sequence()
        self._in_prompt = prompt
        self.counters.steps += 1
        self.counters.tokens += tokens
        self.residency.step(tokens)
        self._chooser.step(tokens)

    def guess(self, record: int) -> bool:
        """A record is foreseen: it is read into a spare slot, where one can be had. False when it is not."""
        placed = self.residency.guess(self._number[record])
        if placed.answer != Answer.MISS:
            return False
        self.counters.guesses += 1
        self._lose(placed)
        return True

    def guess_came(self, record: int, failed: bool = False) -> None:
        """The read of a guess comes back."""
        number = self._number[record]
        if self.residency.is_loading(number):
            (self.residency.failed if failed else self.residency.loaded)(number)
            self.counters.guesses_wasted += failed

    def demand(
        self, records: Iterable[int], failing: Collection[int] = (), tokens: Sequence[int] | None = None
    ) -> list[Wave]:
        """Use pooled records; one that is named many times is demanded once.

        First every record that is there is held, then the others in order until a pool is full: the first wave. Records
        are released in the order in which they were held, and each one that makes room starts a wave. In a prompt those
        that are there are held in the order of their tokens, and only so many of the others at a time.
        A read of `failing` ends the call when it would be consumed. `tokens` chose each of the records; None: as often
        as it is named.
        """
        records = list(records)
        waiting = list(dict.fromkeys(records))
        chose = Counter(dict.fromkeys(waiting, 0))
        for record, some in zip(records, tokens or [1] * len(records), strict=True):
            chose[record] += some
        hits = [record for record in waiting if self.residency.has(self._number[record])]
        if self._in_prompt:
            hits.sort(key=lambda record: chose[record])
        misses = [record for record in waiting if record not in hits]
        at_once = self._misses_at_once() if self._in_prompt else len(misses)
        waves = [self._hold(hits, misses[:at_once], chose)]
        held = deque(waves[0].slots)
        while held:
            if self._read(held[0], failing):
                self._settle(held, failing)
                break
            self.residency.release(self._number[held.popleft()])
            started = {record for wave in waves for record in wave.slots}
            left = [record for record in misses if record not in started]
            room = at_once - sum(record not in hits for record in held)
            wave = self._hold([], left[:room], chose)
            if wave.slots:
                self.counters.waves += 1
                waves.append(wave)
                held += wave.slots
        return waves

    def _misses_at_once(self) -> int:
        """Records of the layer that are not there and are held at a time, in a prompt."""
        half = self.residency.members(self._number[self._last_first]) // 2
        return max(LEAST_MISSES, min(BYTES_AT_ONCE // self._slot_bytes[self._last_first], half))

    def use(self, record: int) -> bool:
        """Use a dense record, then read ahead as far as there is room. Does it stay, and was there?

        What passes through the ring is read at each use, however early, and so never a hit.
        """
        number = self._number[record]
        answer, _ = self.cycle.demand(number)
        hit = answer == CycleAnswer.HIT and number < self.cycle.pinned
        if answer != CycleAnswer.HIT:
            self._read_dense(number)
            self.cycle.demand(number)
        self._count(hit)
        self.cycle.release(number)
        while (ahead := self.cycle.ahead()) is not None:
            self._read_dense(ahead[0])
        return hit

    def _hold(self, hits: Sequence[int], waiting: Sequence[int], chose: Mapping[int, int]) -> Wave:
        """Hold what is there, then of `waiting` what finds a slot, up to the first that does not."""
        slots: dict[int, int] = {}
        victims: list[int] = []
        for record in (*hits, *waiting):
            placed = self.residency.acquire(self._number[record], chose[record])
            if placed.answer == Answer.FULL:
                break
            slots[record] = placed.slot
            victims += self._note(record, chose[record], placed)
        misses = tuple(record for record in slots if record not in hits)
        return Wave(tuple(hits), misses, tuple(victims), slots)

    def _note(self, record: int, tokens: int, placed: Placed) -> list[int]:
        """Count a demand; who lost the slot."""
        self._chooser.note(self._number[record], tokens)
        self._count(placed.answer != Answer.MISS)
        self.counters.passed += placed.guest
        self.counters.guesses_used += placed.foreseen
        self.counters.guesses_late += placed.foreseen and placed.answer == Answer.LOADING
        return self._lose(placed)

    def _lose(self, placed: Placed) -> list[int]:
        self.counters.evictions += placed.victim >= 0
        self.counters.guesses_wasted += placed.displaced >= 0
        return [self._pooled[one] for one in (placed.victim, placed.displaced) if one >= 0]

    def _choose_policy(self) -> None:
        """Between two calls: the policy that does best by the demands so far."""
        began = self._chooser.policy() >= 0
        self._chooser.end_call(self.residency)
        policy = self._chooser.policy()
        if policy >= 0 and policy != self.counters.policy:
            self.residency.set_policy(policy)
            self.counters.policy = policy
            self.counters.policy_changes += began

    def _read(self, record: int, failing: Collection[int]) -> bool:
        """The read of a held record comes back, unless it was there. Has it failed?"""
        number = self._number[record]
        if not self.residency.is_loading(number):
            return False
        if record in failing:
            self.residency.failed(number)
            return True
        self.residency.loaded(number)
        self.counters.read_bytes += self._slot_bytes[record]
        return False

    def _settle(self, held: deque[int], failing: Collection[int]) -> None:
        """After a failure of the first one: the others come back and are released."""
        held.popleft()
        for record in held:
            if not self._read(record, failing):
                self.residency.release(self._number[record])

    def _read_dense(self, number: int) -> None:
        self.cycle.loaded(number)
        self.counters.read_bytes += self._slot_bytes[self._dense[number]]

    def _count(self, hit: bool) -> None:
        self.counters.demands += 1
        self.counters.hits += hit
        self.counters.misses += not hit
