"""Random traces through the decisions who stays: the same through several implementations, each answer checked.

What a trace knows by itself (who holds what, who may leave, what is full) finds wrong decisions without a second one.
"""

import random
from collections import Counter

from ktitan.tiers.reference import AutoSpec, Placed, Policy, ResidencySpec

from support.decision_traces import Together

HIT, MISS, LOADING, FULL = range(4)


class ResidencyTrace:
    """All policies, domains, guests, guesses, pins, seeds, failures and resizing."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        draw = self.random.randint
        self.pools = draw(1, 3)
        per_pool = draw(1, 3)  # domains of a pool
        records = draw(1, 40)
        self.domain = [self.random.randrange(self.pools * per_pool) for _ in range(records)]
        self.pool = [domain // per_pool for domain in self.domain]
        self.by_pool = self.random.random() < 0.3
        if self.by_pool:
            self.domain = self.pool
        self.per_pool = 1 if self.by_pool else per_pool
        self.draw_sizes([draw(per_pool, 12) for _ in range(self.pools)])
        self.policy = self.random.choice(list(Policy))
        # With the last one, everything is counted anew all the time.
        growth = self.random.choice([1.0, 2 ** (1 / 32), 2 ** (1 / 3), 2.0])
        self.spec = ResidencySpec(*self.spec_sizes(), self.policy, growth)
        self.holds, self.loading, self.there, self.guesses = Counter(), set(), {}, set()
        self.pins, self.acquired, self.used = set(), {}, Counter()
        self.hurry = self.random.choice([1, 1, 40])  # tokens of a step

    def draw_sizes(self, slots):
        """Slots of each pool, spares and domains' slots that fit into them."""
        self.slots, self.spares, self.shares = slots, [], []
        for some in slots:
            spare = self.random.randint(0, max(0, min(4, some - self.per_pool)))
            left = some - spare
            self.spares.append(spare)
            for after in reversed(range(self.per_pool)):
                share = self.random.randint(1, left - after)
                self.shares.append(share)
                left -= share

    def spec_sizes(self):
        domains = (None, None) if self.by_pool else (self.domain, self.shares)
        return self.slots, self.pool, self.spares, *domains

    def run(self, *kinds, steps=60):
        self.both = Together(*(kind(self.spec) for kind in kinds))
        choices = {
            self.acquire: 16,
            self.come_back: 8,
            self.release: 14,
            self.guess: 5,
            self.evict: 1,
            self.step: 4,
            self.begin_sequence: 0.5,
            self.change_policy: 0.5,
            self.pin: 1,
            self.seed: 1,
            self.resize: 0.7,
        }
        for self.now in range(steps):
            self.random.choices(list(choices), list(choices.values()))[0]()
            self.check()

    def check(self):
        assert self.both.count() == len(self.there)
        record = self.random.randrange(len(self.pool))
        assert self.both.slot(record) == self.there.get(record, -1)
        assert self.both.has(record) == (record in self.there)
        assert self.both.score(record) >= 0
        pool = self.random.randrange(self.pools)
        used = sum(self.pool[r] == pool for r in self.there)
        assert self.both.used(pool) == used and self.both.free(pool) == self.slots[pool] - used
        assert self.both.tokens() == [self.used[r] for r in range(len(self.pool))]

    def idle(self, record):
        return record in self.there and not self.holds[record] and record not in self.loading

    def share(self, record):
        """Members that its domain may have."""
        pool = self.pool[record]
        return self.slots[pool] - self.spares[pool] if self.by_pool else self.shares[self.domain[record]]

    def rivals(self, record):
        return [r for r in self.there if self.domain[r] == self.domain[record]]

    def make_room(self, record, placed):
        """Who left: nobody in use, and only for a record that came. Then its slot, which nobody else has."""
        gone = [one for one in (placed.victim, placed.displaced) if one >= 0]
        assert len(gone) <= (placed.answer == MISS)
        for one in gone:
            assert one != record and self.idle(one) and self.pool[one] == self.pool[record]
            del self.there[one]
        assert placed.displaced < 0 or placed.displaced in self.guesses
        assert placed.victim not in self.guesses
        self.guesses -= {*gone}
        if placed.answer == MISS:
            taken = [slot for r, slot in self.there.items() if self.pool[r] == self.pool[record]]
            assert 0 <= placed.slot < self.slots[self.pool[record]] and placed.slot not in taken
            self.there[record] = placed.slot
            self.loading.add(record)
        assert placed.slot == self.there[record]

    def acquire(self):
        record, tokens = self.random.randrange(len(self.pool)), self.random.choice([0, 1, 1, 1, 2, 30])
        if self.guesses and self.random.random() < 0.3:
            record = self.random.choice(sorted(self.guesses))
        rivals, first = self.rivals(record), self.first_to_leave(record)
        answer = LOADING if record in self.loading else HIT if record in self.there else MISS
        placed = Placed(*self.both.acquire(record, tokens))
        if placed.answer == FULL:
            assert answer == MISS and not any(self.idle(r) and r not in self.pins | self.guesses for r in rivals)
            return
        assert placed.answer == answer and placed.foreseen == (record in self.guesses)
        assert len(rivals) >= self.share(record) or not placed.guest
        assert first is None or placed.victim == first
        self.make_room(record, placed)
        self.guesses.discard(record)
        self.holds[record] += 1
        self.used[record] += tokens
        self.acquired[record] = self.now

    def first_to_leave(self, record):
        """The victim, where the trace knows the order: plain policies without spare slots."""
        if self.spares[self.pool[record]] or self.policy not in (Policy.LRU, Policy.LFU):
            return None
        rivals = self.rivals(record)
        if record in self.there or len(rivals) < self.share(record):
            return -1
        often = self.used if self.policy == Policy.LFU else Counter()
        return min(filter(self.idle, rivals), key=lambda r: (often[r], self.acquired[r]), default=-1)

    def come_back(self):
        if not self.loading:
            return
        record = self.random.choice(sorted(self.loading))
        self.loading.remove(record)
        if self.random.random() < 0.8:
            self.both.loaded(record)
        else:
            self.both.failed(record)
            self.holds[record] = 0
            self.forget(record)

    def release(self):
        held = sorted(record for record in +self.holds)
        if held:
            record = self.random.choice(held)
            self.holds[record] -= 1
            self.both.release(record)

    def guess(self):
        record = self.random.randrange(len(self.pool))
        placed = Placed(*self.both.guess(record))
        if placed.answer == FULL:
            assert record not in self.there
            return
        assert (placed.answer == HIT) == (record in self.there)
        self.make_room(record, placed)
        if placed.answer == MISS:
            assert placed.guest
            self.guesses.add(record)

    def forget(self, record):
        del self.there[record]
        self.guesses.discard(record)

    def evict(self):
        record = self.random.randrange(len(self.pool))
        able = self.idle(record)
        assert self.both.evict(record) == able
        if able:
            self.forget(record)

    def step(self):
        self.both.step(self.random.choice([0, 1, 1, 1, 5, self.hurry * 30, self.hurry * 300]))

    def begin_sequence(self):
        self.both.sequence()

    def change_policy(self):
        self.policy = self.random.choice(list(Policy))
        self.both.set_policy(self.policy)

    def pin(self):
        record, pinned = self.random.randrange(len(self.pool)), self.random.random() < 0.8
        if self.both.pin(record, pinned):
            (self.pins.add if pinned else self.pins.discard)(record)
        assert self.both.pinned(record) == (record in self.pins)
        assert sum(self.domain[r] == self.domain[record] for r in self.pins) <= self.share(record) // 2

    def seed(self):
        self.both.seed(self.random.randrange(len(self.pool)), self.random.choice([0.0, 0.3, 2.5, 1000.0]))

    def resize(self):
        before = self.slots, self.spares, self.shares
        records = Counter(self.pool)
        self.draw_sizes([self.random.randint(self.per_pool, 12) for _ in range(self.pools)])
        moves = self.both.resize(self.slots, self.spares, None if self.by_pool else self.shares)
        if moves is None:
            busy = any(not self.idle(record) for record in self.there)
            too_many = any(
                some > first + records[pool]
                for pool, (some, first) in enumerate(zip(self.slots, self.spec.pool_slots, strict=True))
            )
            assert busy or too_many
            self.slots, self.spares, self.shares = before
            return
        assert all(self.idle(record) for record in self.there)
        self.there = {r: slot for r, slot in self.there.items() if self.both.has(r)}
        self.guesses.clear()
        self.pins.clear()
        for record, origin, to in moves:
            taken = [slot for r, slot in self.there.items() if self.pool[r] == self.pool[record]]
            assert self.there[record] == origin and to not in taken
            self.there[record] = to
        assert all(slot < self.slots[self.pool[r]] for r, slot in self.there.items())
        assert all(self.both.slot(r) == slot for r, slot in self.there.items())


class AutoTrace:
    """`run(Auto, NativeAuto)`: layers with favourites that change, pins, seeds and resizing.

    One in 40 is long enough for three or four comparisons, the others are short: so 1,000 take seconds.
    """

    def __init__(self, seed):
        self.random = random.Random(seed)
        draw = self.random.randint
        self.experts = [draw(4, 16) for _ in range(draw(1, 3))]
        self.growth = self.random.choice([1.0, 2 ** (1 / 32), 2 ** (1 / 4)])
        self.spec = AutoSpec(self.experts, *self.draw_sizes(), draw(1, 8), self.growth)
        self.weights = [[self.random.random() ** 2 for _ in range(experts)] for experts in self.experts]
        self.calls = 1500 if self.random.random() < 0.025 else draw(20, 80)

    def draw_sizes(self):
        return [self.random.randint(1, experts) for experts in self.experts], self.random.randint(0, 4)

    def run(self, *kinds):
        self.both = Together(*(kind(self.spec) for kind in kinds))
        since = self.both.policy()
        for number in range(self.calls):
            if self.random.random() < 5 / self.calls:
                self.change()
            self.both.step(self.random.choice([1, 1, 1, 40]))
            layer = self.random.randrange(len(self.experts))
            chosen = self.random.choices(range(self.experts[layer]), self.weights[layer], k=self.random.randint(1, 4))
            wanted = Counter(chosen)
            self.both.demand(layer, sorted(wanted), [wanted[expert] for expert in sorted(wanted)])
            if self.both.policy() != since or number % 100 == 0:
                since = self.both.policy()
                assert all(-1 <= rate <= 1 for rate in self.both.rates())

    def change(self):
        layer = self.random.randrange(len(self.experts))
        kind = self.random.randrange(4)
        if kind == 0:
            self.both.sequence()
        elif kind == 1:
            self.random.shuffle(self.weights[layer])
        elif kind == 2:
            expert, pinned = self.random.randrange(self.experts[layer]), self.random.random() < 0.8
            self.both.seed(layer, expert, self.random.random() * 50, pinned)
        else:
            self.both.resize(*self.draw_sizes())
