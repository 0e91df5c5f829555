"""Random traces through the store's decisions: the same through several implementations, each answer checked.

What a trace knows by itself (who holds what, which bytes are where) finds wrong decisions without a second one.
"""

import random

PAGE = 4096
C_HIT, C_LOADING, C_MISS, C_BUSY = range(4)


class Together:
    """Calls every implementation and answers what all of them answer."""

    def __init__(self, *implementations):
        self.all = implementations

    def __getattr__(self, name):
        def call(*arguments):
            answers = [getattr(one, name)(*arguments) for one in self.all]
            assert all(answer == answers[0] for answer in answers), (name, arguments, answers)
            return answers[0]

        return call


class CycleTrace:
    """`run(Cycle, NativeCycle, ...)`: each page of the memory knows whose bytes it has."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        records = self.random.randint(1, 20)
        most = self.random.choice([1, 3, 12])
        self.sizes = [PAGE * self.random.randint(1, most) for _ in range(records)]
        pairs = [a + b for a, b in zip(self.sizes, self.sizes[1:] + self.sizes[:1], strict=True)]
        self.least = max(pairs) if records > 1 else self.sizes[0]
        self.capacity = self.least + PAGE * self.random.randint(0, max(0, (sum(self.sizes) - self.least) // PAGE) + 1)
        self.order = list(range(records))
        self.pages, self.flight, self.at = {}, {}, -1
        self.noise = self.random.choice([0, 0.05, 0.5])
        self.fails = self.random.choice([0, 0, 0.2])
        self.resizes = self.random.choice([0, 0, 0.1])

    def run(self, *kinds, steps=60):
        self.both = Together(*(kind(self.sizes, self.capacity) for kind in kinds))
        self.measure()
        for _ in range(steps):
            if self.random.random() < self.resizes:
                self.resize()
            if self.random.random() < self.noise * 0.2:
                self.random.shuffle(self.order)
            if self.random.random() < self.noise * 0.2:
                self.both.drop()
            self.read_ahead()
            self.use(self.choose())

    def measure(self):
        self.memory = self.capacity
        for one in self.both.all:
            assert (one.pinned, one.ring_bytes) == (self.both.all[0].pinned, self.both.all[0].ring_bytes)
            assert sum(self.sizes[: one.pinned]) + one.ring_bytes <= self.capacity

    def resize(self):
        """Between two uses, with and without reads on their way."""
        capacity = self.least + PAGE * self.random.randint(-1, max(0, (sum(self.sizes) - self.least) // PAGE) + 1)
        able = not self.flight and capacity >= self.least
        there = [self.both.has(record) for record in range(len(self.sizes))]
        before = self.both.all[0].pinned
        assert self.both.resize(capacity) == able
        if able:
            self.capacity = capacity
            kept = min(before, self.both.all[0].pinned)
            for record, was in enumerate(there):
                assert self.both.has(record) == (was and record < kept)
        self.measure()

    def choose(self):
        jump = self.random.random() < self.noise
        self.at = self.random.randrange(len(self.order)) if jump else (self.at + 1) % len(self.order)
        return self.order[self.at]

    def span(self, record, at):
        assert at % PAGE == 0 and at >= 0 and at + self.sizes[record] <= self.memory, (record, at)
        return range(at // PAGE, (at + self.sizes[record]) // PAGE)

    def begin_read(self, record, at, held=None):
        span = self.span(record, at)
        assert record not in self.flight
        busy = {page for pages in self.flight.values() for page in pages} | set(held or ())
        assert not busy & set(span), "a read goes over bytes in use"
        self.flight[record] = span
        for page in span:
            self.pages[page] = None

    def end_read(self):
        record = self.random.choice(sorted(self.flight))
        span = self.flight.pop(record)
        if self.random.random() < self.fails:
            self.both.failed(record)
            return
        for page in span:
            self.pages[page] = record
        self.both.loaded(record)

    def read_ahead(self, held=None):
        while self.random.random() < 0.8 and (found := self.both.ahead()) is not None:
            self.begin_read(*found, held)
        while self.flight and self.random.random() < 0.4:
            self.end_read()

    def use(self, record):
        for _ in range(1000):
            answer, at = self.both.demand(record)
            if answer == C_HIT:
                break
            if answer == C_MISS:
                self.begin_read(record, at)
            assert self.flight, "nothing is on its way, so nothing will change"
            assert answer != C_LOADING or record in self.flight
            if self.random.random() < 0.02:
                return  # the request ends here
            self.end_read()
            if self.random.random() < 0.5:
                self.read_ahead()
        assert answer == C_HIT
        span = self.span(record, at)
        assert {self.pages[page] for page in span} == {record}, "the bytes of another record"
        self.read_ahead(span)
        assert {self.pages[page] for page in span} == {record}
        self.both.release(record)
