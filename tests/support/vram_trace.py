"""Random traces through the VRAM tier with emulated devices: bytes in RAM and VRAM are moved and looked at."""

import random
from collections import Counter

from ktitan.tiers.reference import ResidencySpec
from ktitan.tiers.reference.vram import VramSpec

PAYLOAD = 8
HIT, MISS, LOADING, FULL = range(4)


class EmulatedDevice:
    """VRAM and RAM slots as pieces of host memory, and what the published table names."""

    def __init__(self, ram_slots, vram_slots):
        self.ram = [bytearray(PAYLOAD * slots) for slots in ram_slots]
        self.vram = [bytearray(PAYLOAD * slots) for slots in vram_slots]
        self.named, self.fails, self.log = set(), False, []

    def copy_in(self, pool, vram_slot, ram_slot):
        self.log.append(("in", pool, vram_slot, ram_slot))
        assert (pool, vram_slot) not in self.named or self.wrong("over a slot that the published table names")
        return not self.fails and self.copy(self.vram[pool], vram_slot, self.ram[pool], ram_slot)

    def copy_out(self, pool, vram_slot, ram_slot):
        self.log.append(("out", pool, vram_slot, ram_slot))
        return not self.fails and self.copy(self.ram[pool], ram_slot, self.vram[pool], vram_slot)

    def copy(self, target, to, source, of):
        target[to * PAYLOAD : (to + 1) * PAYLOAD] = source[of * PAYLOAD : (of + 1) * PAYLOAD]
        return True

    def wrong(self, what):
        self.log.append(what)  # errors do not pass through C
        return True

    def holds(self, memory, pool, slot):
        return bytes(memory[pool][slot * PAYLOAD : (slot + 1) * PAYLOAD])


class Machine:
    """One implementation with its own memory."""

    def __init__(self, residency, vram, ram_slots, spec):
        self.device = EmulatedDevice(ram_slots, spec.pool_slots)
        self.ram = residency(ResidencySpec(ram_slots, spec.record_pool))
        self.tier = vram(self.ram, spec, self.device)

    def counters(self):
        counted = self.tier.counters()
        return counted if isinstance(counted, dict) else vars(counted)


class VramTrace:
    """`run((Residency, Vram), (NativeResidency, NativeVram))`."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        draw = self.random.randint
        pools = draw(1, 2)
        self.ram_slots = [draw(1, 8) for _ in range(pools)]
        vram = [draw(0, 6) for _ in range(pools)]
        spares = [draw(0, min(2, max(slots - 1, 0))) for slots in vram]
        records = draw(1, 24)
        self.pool = [self.random.randrange(pools) for _ in range(records)]
        drive = [self.random.random() < 0.7 for _ in range(pools)]
        self.on_drive = [drive[pool] for pool in self.pool]
        self.spec = VramSpec(vram, spares, self.pool, self.on_drive, self.random.random() < 0.3)
        self.bytes = [self.random.randbytes(PAYLOAD) for _ in range(records)]
        self.holds, self.known = Counter(), set()

    def run(self, *kinds, steps=60):
        self.machines = [Machine(*kind, self.ram_slots, self.spec) for kind in kinds]
        for _ in range(steps):
            step = self.random.choices(
                [self.acquire, self.release, self.promote, self.use, self.publish, self.evict], [6, 5, 6, 3, 3, 1]
            )[0]
            for machine in self.machines:
                machine.device.fails = False
            if self.random.random() < 0.05:
                for machine in self.machines:
                    machine.device.fails = True
            step(self.random.randrange(len(self.pool)))
            for machine in self.machines:
                self.check(machine)
            states = [(m.device.log, m.counters(), m.tier.table()) for m in self.machines]
            assert all(state == states[0] for state in states), states

    def same(self, call):
        answers = [call(machine) for machine in self.machines]
        assert all(answer == answers[0] for answer in answers), answers
        return answers[0]

    def acquire(self, record):
        """Use in RAM. The only copy of what no drive has is neither read again nor pushed out."""
        there = self.same(lambda m: m.ram.has(record))
        room = self.same(lambda m: m.ram.free(self.pool[record]))
        if not there and not self.on_drive[record] and (record in self.known or not room):
            return
        answer, slot, *_ = self.same(lambda m: m.ram.acquire(record))
        if answer == FULL:
            return
        self.holds[record] += 1
        if answer == MISS:
            self.known.add(record)
            for machine in self.machines:
                machine.device.ram[self.pool[record]][slot * PAYLOAD : (slot + 1) * PAYLOAD] = self.bytes[record]
                machine.ram.loaded(record)

    def release(self, _):
        held = sorted(+self.holds)
        if held:
            record = self.random.choice(held)
            self.holds[record] -= 1
            self.same(lambda m: m.ram.release(record))

    def promote(self, record):
        self.same(lambda m: m.tier.promote(record))

    def use(self, record):
        slot = self.same(lambda m: m.tier.use(record))
        for machine in self.machines if slot >= 0 else ():
            assert machine.device.holds(machine.device.vram, self.pool[record], slot) == self.bytes[record]

    def publish(self, _):
        """The end of a step, when mostly nobody holds anything."""
        while self.random.random() < 0.95 and +self.holds:
            self.release(None)
        before = self.machines[0].tier.table()
        changed = self.same(lambda m: m.tier.publish())
        after = self.machines[0].tier.table()
        assert changed == sum(a != b for a, b in zip(before, after, strict=True))
        for machine in self.machines:
            table = machine.tier.table()
            machine.device.named = {(self.pool[r], slot) for r, slot in enumerate(table) if slot >= 0}

    def evict(self, record):
        if self.on_drive[record]:
            self.same(lambda m: m.ram.evict(record))

    def check(self, machine):
        """Every copy has its record's bytes, no two records share a slot, nothing is lost."""
        device, table = machine.device, machine.tier.table()
        assert not [entry for entry in device.log if isinstance(entry, str)], device.log
        named = [(self.pool[r], slot) for r, slot in enumerate(table) if slot >= 0]
        assert len(set(named)) == len(named)
        for record, slot in enumerate(table):
            pool = self.pool[record]
            ram_slot = machine.ram.slot(record)
            if slot >= 0:
                assert device.holds(device.vram, pool, slot) == self.bytes[record], f"record {record} in VRAM"
            if ram_slot >= 0:
                assert device.holds(device.ram, pool, ram_slot) == self.bytes[record], f"record {record} in RAM"
            assert slot >= 0 or ram_slot >= 0 or self.on_drive[record] or record not in self.known, f"{record} is lost"
