"""Which record is where: pools of slots, domains that share them, guests in spare slots (csrc/tiers/residency.h)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from ktitan.errors import UnsupportedError
from ktitan.tiers.reference.policies import PROTECTED_OF_5, Policy, Use, Uses, is_worth

__all__ = ["Answer", "Placed", "Residency", "ResidencySpec"]


class Answer(IntEnum):
    """`enum kt_residency_answer`."""

    HIT = 0
    MISS = 1
    LOADING = 2
    FULL = 3


class Placed(NamedTuple):
    """An answer, and `kt_placed`; -1 is no slot and no record."""

    answer: int
    slot: int = -1
    victim: int = -1
    displaced: int = -1
    foreseen: bool = False
    guest: bool = False


@dataclass(frozen=True)
class ResidencySpec:
    """`kt_residency_spec`.

    Attributes:
        pool_slots: slots of each pool.
        record_pool: the pool of each record; -1: never asked for.
        pool_spares: of the slots, those for guests; None: none.
        record_domain: the domain of each record; None: that of its pool's number.
        domain_slots: most members of each domain; None with `record_domain`.
        policy: who makes room.
        growth: what a token counts more than the one before it.
    """

    pool_slots: Sequence[int]
    record_pool: Sequence[int]
    pool_spares: Sequence[int] | None = None
    record_domain: Sequence[int] | None = None
    domain_slots: Sequence[int] | None = None
    policy: int = Policy.LRU
    growth: float = 1.0


@dataclass(slots=True)
class _Record:
    pool: int
    domain: int
    slot: int = -1
    holds: int = 0
    loading: bool = False
    guest: bool = False
    guessed: bool = False
    protected: bool = False
    pinned: bool = False

    @property
    def busy(self) -> bool:
        return self.holds > 0 or self.loading


@dataclass(slots=True)
class _Pool:
    """Slots of one size class; `guesses` are those that nobody used, in the order of their coming."""

    slots: int
    spares: int
    most_slots: int
    fresh: int = 0
    freed: list[int] = field(default_factory=list)
    there: set[int] = field(default_factory=set)
    guests: set[int] = field(default_factory=set)
    guesses: list[int] = field(default_factory=list)

    def take_slot(self) -> int:
        if self.fresh < self.slots:
            self.fresh += 1
            return self.fresh - 1
        return self.freed.pop()


@dataclass(slots=True)
class _Domain:
    pool: int
    slots: int = 0
    members: set[int] = field(default_factory=set)
    pins: int = 0


class Residency:
    """Records in the slots of their pools.

    Raises:
        UnsupportedError: the sizes of the spec contradict each other.
    """

    def __init__(self, spec: ResidencySpec) -> None:
        by_pool = spec.record_domain is None
        domain_of = spec.record_pool if spec.record_domain is None else spec.record_domain
        self._by_pool = by_pool
        self._records = [_Record(pool, domain) for pool, domain in zip(spec.record_pool, domain_of, strict=True)]
        self._pools = [
            _Pool(slots, 0, slots + list(spec.record_pool).count(p)) for p, slots in enumerate(spec.pool_slots)
        ]
        self._domains = _domains(
            self._records, len(spec.pool_slots if spec.domain_slots is None else spec.domain_slots)
        )
        self._policy = Policy(spec.policy)
        self._uses = Uses([Use() for _ in self._records], spec.growth)
        if by_pool != (spec.domain_slots is None) or not self._fit(
            spec.pool_slots, spec.pool_spares, spec.domain_slots
        ):
            raise UnsupportedError("no residency of these sizes", "residency", "see csrc/tiers/residency.h")
        self._set_sizes(spec.pool_slots, spec.pool_spares, spec.domain_slots)

    # ---- clocks and what records count for ----

    def step(self, tokens: int) -> None:
        """The model takes a step of so many tokens."""
        self._uses.step(tokens)

    def sequence(self) -> None:
        """A sequence begins."""
        self._uses.sequence()

    def set_policy(self, policy: int) -> None:
        """Another policy from now on."""
        if policy != self._policy:
            self._policy = Policy(policy)
            for record in self._records:
                record.protected = False

    def pin(self, record: int, pinned: bool) -> bool:
        """Pin a record, or not; False where half of its domain's slots have pins."""
        what = self._records[record]
        if what.pool < 0 or what.pinned == pinned:
            return what.pool >= 0
        domain = self._domains[what.domain]
        if pinned and domain.pins >= domain.slots // 2:
            return False
        what.pinned = pinned
        domain.pins += 1 if pinned else -1
        return True

    def pinned(self, record: int) -> bool:
        """Is it pinned?"""
        return self._records[record].pinned

    def seed(self, record: int, tokens: float) -> None:
        """What it counts for before any token chose it."""
        self._uses.seed(record, tokens)

    def score(self, record: int) -> float:
        """What it counts for now, in tokens."""
        return self._uses.records[record].score / self._uses.worth

    def tokens(self) -> list[int]:
        """Tokens that chose each record."""
        return [use.tokens for use in self._uses.records]

    # ---- coming and going ----

    def acquire(self, record: int, tokens: int = 1) -> Placed:
        """Hold a record that so many tokens of the step chose."""
        what = self._records[record]
        there, foreseen, victim, displaced = what.slot >= 0, what.guessed, -1, -1
        if there:
            self._leave_guesses(record)
            if what.guest:
                self._try_join(record, tokens)
        else:
            found = self._make_room(record, tokens)
            if found is None:
                return Placed(Answer.FULL)
            victim, displaced = found
        what.holds += 1
        self._uses.note(record, tokens)
        if there and not foreseen:
            self._protect(record)
        answer = Answer.MISS if not there else Answer.LOADING if what.loading else Answer.HIT
        return Placed(answer, what.slot, victim, displaced, foreseen, what.guest)

    def guess(self, record: int) -> Placed:
        """Give a record that is foreseen a spare slot, to be filled; nobody holds it."""
        what = self._records[record]
        if what.slot >= 0:
            return Placed(Answer.HIT, what.slot, guest=what.guest)
        found = self._room_for_guest(what.pool)
        if found is None:
            return Placed(Answer.FULL)
        self._come(record, guest=True)
        what.guessed = True
        self._pools[what.pool].guesses.append(record)
        return Placed(Answer.MISS, what.slot, *found, guest=True)

    def has(self, record: int) -> bool:
        """Would `acquire` answer HIT or LOADING?"""
        return self._records[record].slot >= 0

    def members(self, record: int) -> int:
        """Most members of its domain."""
        return self._domains[self._records[record].domain].slots

    def is_loading(self, record: int) -> bool:
        """Is it on its way?"""
        return self._records[record].loading

    def loaded(self, record: int) -> None:
        """A record that missed is filled."""
        self._records[record].loading = False

    def failed(self, record: int) -> None:
        """A record that missed cannot be filled: its slot is free, nobody holds it."""
        what = self._records[record]
        if what.loading:
            what.loading, what.holds = False, 0
            self._leave(record)

    def release(self, record: int) -> None:
        """Undo one `acquire`."""
        self._records[record].holds = max(0, self._records[record].holds - 1)

    def evict(self, record: int) -> bool:
        """Forget a record; False when it is held, on its way or not there."""
        what = self._records[record]
        if what.slot < 0 or what.busy:
            return False
        self._leave(record)
        return True

    def slot(self, record: int) -> int:
        """Its slot, or -1."""
        return self._records[record].slot

    def count(self) -> int:
        """Records that are there."""
        return sum(len(pool.there) for pool in self._pools)

    def free(self, pool: int) -> int:
        """Slots of a pool that no record has."""
        return self._pools[pool].slots - len(self._pools[pool].there)

    def used(self, pool: int) -> int:
        """Slots of a pool that a record has."""
        return len(self._pools[pool].there)

    # ---- sizes ----

    def resize(
        self, pool_slots: Sequence[int], pool_spares: Sequence[int] | None, domain_slots: Sequence[int] | None
    ) -> list[tuple[int, int, int]] | None:
        """Other numbers of slots; the moves (record, from, to), or None where that cannot be now."""
        good = (domain_slots is None) == self._by_pool and self._fit(pool_slots, pool_spares, domain_slots)
        if not good or any(record.busy for record in self._records):
            return None
        self._set_sizes(pool_slots, pool_spares, domain_slots)
        for record, what in enumerate(self._records):
            if what.guest:
                self._leave(record)
            what.pinned = False
        for domain in self._domains:
            domain.pins = 0
            while len(domain.members) > domain.slots:
                self._leave(self._victim(domain))
        return [move for number in range(len(self._pools)) for move in self._pack(number)]

    def _fit(
        self, pool_slots: Sequence[int], pool_spares: Sequence[int] | None, domain_slots: Sequence[int] | None
    ) -> bool:
        for number, (pool, slots) in enumerate(zip(self._pools, pool_slots, strict=True)):
            spares = pool_spares[number] if pool_spares else 0
            shares = [some for d, some in zip(self._domains, domain_slots or (), strict=False) if d.pool == number]
            if not 1 <= slots <= pool.most_slots or not 0 <= spares < slots:
                return False
            if min(shares, default=1) < 1 or spares + sum(shares) > slots:
                return False
        return True

    def _set_sizes(
        self, pool_slots: Sequence[int], pool_spares: Sequence[int] | None, domain_slots: Sequence[int] | None
    ) -> None:
        for number, pool in enumerate(self._pools):
            pool.slots, pool.spares = pool_slots[number], pool_spares[number] if pool_spares else 0
        for number, domain in enumerate(self._domains):
            if domain.pool >= 0:
                pool = self._pools[domain.pool]
                domain.slots = domain_slots[number] if domain_slots else pool.slots - pool.spares

    def _pack(self, number: int) -> list[tuple[int, int, int]]:
        """Records whose slots are gone move to the lowest free ones."""
        pool = self._pools[number]
        taken = {self._records[record].slot for record in pool.there}
        free = iter([slot for slot in range(pool.slots) if slot not in taken])
        moves = []
        for record in sorted(pool.there):
            what = self._records[record]
            if what.slot >= pool.slots:
                moves.append((record, what.slot, to := next(free)))
                what.slot = to
        taken = {self._records[record].slot for record in pool.there}
        pool.fresh = max(taken, default=-1) + 1
        pool.freed = [slot for slot in reversed(range(pool.fresh)) if slot not in taken]
        return moves

    # ---- members ----

    def _victim(self, domain: _Domain) -> int:
        """The member that makes room first, or -1."""
        stays = self._policy == Policy.PINNED
        able = [r for r in domain.members if not self._records[r].busy and not (stays and self._records[r].pinned)]
        return min(able, key=self._order, default=-1)

    def _order(self, record: int) -> tuple[bool, tuple[float, int]]:
        return self._records[record].protected, self._uses.rank(self._policy, record)

    def _admits(self, record: int, tokens: int, victim: int) -> bool:
        pinned = self._policy == Policy.PINNED and self._records[record].pinned
        if self._policy.admits_all or pinned:
            return True
        return is_worth(self._uses.score_after(record, tokens), self._uses.records[victim].score)

    def _try_join(self, record: int, tokens: int) -> None:
        """A guest becomes a member where there is room, or the policy makes room for it."""
        what = self._records[record]
        domain = self._domains[what.domain]
        full = len(domain.members) == domain.slots
        victim = self._victim(domain) if full else -1
        if full and (victim < 0 or not self._admits(record, tokens, victim)):
            return
        what.guest = False
        self._pools[what.pool].guests.remove(record)
        if full:
            self._step_aside(victim)
        domain.members.add(record)

    def _make_room(self, record: int, tokens: int) -> tuple[int, int] | None:
        """Give a record a slot; who lost it: a victim, a guess, or -1 each."""
        what = self._records[record]
        domain = self._domains[what.domain]
        full = len(domain.members) == domain.slots
        victim = self._victim(domain) if full else -1
        admitted = not full or (victim >= 0 and self._admits(record, tokens, victim))
        left = None if admitted else self._room_for_guest(what.pool)
        as_guest = left is not None
        if left is None:
            if full and victim < 0:
                return None
            left = (self._step_aside(victim) if full else -1, -1)
        self._come(record, as_guest)
        return left

    def _protect(self, record: int) -> None:
        """A member was acquired again."""
        what = self._records[record]
        domain = self._domains[what.domain]
        most = domain.slots * PROTECTED_OF_5 // 5
        if self._policy != Policy.SLRU or what.guest or what.protected or most == 0:
            return
        what.protected = True
        protected = [one for one in domain.members if self._records[one].protected]
        idle = [one for one in protected if not self._records[one].busy]
        idle.sort(key=self._order)
        for one in idle[: max(0, len(protected) - most)]:
            self._records[one].protected = False

    # ---- guests ----

    def _lingering(self, pool: _Pool) -> int:
        """The guest that leaves first, or -1: the one that counts least, whatever the policy."""
        able = [one for one in pool.guests if not self._records[one].busy and not self._records[one].guessed]
        return min(able, key=self._count_for, default=-1)

    def _count_for(self, record: int) -> tuple[float, int]:
        return self._uses.rank(Policy.DECAYED_LFU, record)

    def _room_for_guest(self, number: int) -> tuple[int, int] | None:
        """Have a spare slot free: the guest and the guess that left it, or -1; None where all stay."""
        pool = self._pools[number]
        if len(pool.guests) < pool.spares:
            return -1, -1
        lingering = self._lingering(pool)
        guess = next((one for one in pool.guesses if not self._records[one].loading), -1) if lingering < 0 else -1
        if max(lingering, guess) < 0:
            return None
        self._leave(max(lingering, guess))
        return lingering, guess

    def _step_aside(self, victim: int) -> int:
        """A member lingers where a spare slot is free or has a guest that counts clearly less; who left, or -1."""
        what = self._records[victim]
        pool = self._pools[what.pool]
        leaving = -1
        if len(pool.guests) >= pool.spares:
            least = self._lingering(pool)
            scores = self._uses.records
            leaving = victim if least < 0 or is_worth(scores[least].score, scores[victim].score) else least
            self._leave(leaving)
        if leaving != victim:
            self._domains[what.domain].members.remove(victim)
            what.guest, what.protected = True, False
            pool.guests.add(victim)
        return leaving

    def _leave_guesses(self, record: int) -> None:
        what = self._records[record]
        if what.guessed:
            what.guessed = False
            self._pools[what.pool].guesses.remove(record)

    def _come(self, record: int, guest: bool) -> None:
        what = self._records[record]
        pool = self._pools[what.pool]
        what.slot, what.loading, what.guest = pool.take_slot(), True, guest
        pool.there.add(record)
        (pool.guests if guest else self._domains[what.domain].members).add(record)

    def _leave(self, record: int) -> None:
        what = self._records[record]
        pool = self._pools[what.pool]
        self._leave_guesses(record)
        (pool.guests if what.guest else self._domains[what.domain].members).remove(record)
        pool.there.remove(record)
        pool.freed.append(what.slot)
        what.slot, what.guest, what.protected = -1, False, False


def _domains(records: Sequence[_Record], count: int) -> list[_Domain]:
    """The domains, each of one pool.

    Raises:
        UnsupportedError: one has records of several.
    """
    domains = [_Domain(-1) for _ in range(count)]
    for record in records:
        if record.pool < 0:
            continue
        if not 0 <= record.domain < count or domains[record.domain].pool not in (-1, record.pool):
            raise UnsupportedError("no residency of these domains", "residency", "see csrc/tiers/residency.h")
        domains[record.domain].pool = record.pool
    return domains
