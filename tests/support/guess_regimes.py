"""A simulated drive and clock under a controller of guesses: layers with absent experts, some of them foreseen.

As the store does it: guesses are asked for once nothing demanded is on its way, as many as level and idle time allow;
one that is demanded in flight is waited for; a wrong one in flight delays what is demanded.
"""

import random
from dataclasses import dataclass

from ktitan.tiers.reference.controller import GuessStep, guess_fits

LAYERS = 12
MS = 1_000_000


@dataclass(frozen=True)
class Regime:
    """What the drive and the layers are like.

    Attributes:
        absent: experts of a layer that are not resident.
        read_ns: the read of one.
        think_ns: between a layer's last read and the next layer's demand.
        recall: part of what a guess of the best candidates finds.
        predict_ns: a prediction.
    """

    absent: int
    read_ns: int
    think_ns: int
    recall: float
    predict_ns: int = MS // 50


# Time per layer: reads of 4 ms and 4 ms without; of 8 ms and next to nothing.
IDLE = Regime(4, MS, 4 * MS, 0.8)
SATURATED = Regime(8, MS, MS // 5, 0.8)
USELESS = Regime(4, MS, 4 * MS, 0.0)


class Simulated:
    """The model's steps on this drive, with `controller` deciding."""

    def __init__(self, controller, seed):
        self.controller = controller
        self.random = random.Random(seed)
        self.right = 512
        self.walls, self.levels, self.bytes = [], [], 0

    def run(self, regime, steps):
        """Take steps; the time of each."""
        for _ in range(steps):
            self.levels.append(self.controller.level)
            step = self._step(regime, self.controller.level)
            self.controller.step(step)
            self.walls.append(step.wall_ns)
        return self.walls[-steps:]

    def _step(self, regime, level):
        wall = stall = overhead = idle = 0
        there, left = 0, 0  # right guesses that are there or on their way, ns that the drive still reads guesses
        jitter = self.random.uniform(0.9, 1.1)
        for _ in range(LAYERS):
            wanted = max(0, regime.absent + self.random.choice((-1, 0, 0, 1)) - there)
            waits = left + int(wanted * regime.read_ns * jitter)
            stall += waits
            gap = int(regime.think_ns * self.random.uniform(0.8, 1.2))
            idle += gap
            wall += waits + gap
            there, left = 0, 0
            if level:
                overhead += regime.predict_ns
                wall += regime.predict_ns
                there, left = self._guess(regime, level, gap)
        return GuessStep(wall, stall, overhead, idle)

    def _guess(self, regime, level, gap):
        room, made, there = regime.think_ns, 0, 0
        while made < level and guess_fits(room, regime.read_ns, self.right):
            room -= regime.read_ns
            made += 1
            there += self.random.random() < regime.recall and there < regime.absent
        if made:
            self.right += (1024 * there // made - self.right) // 16
        return there, max(0, made * regime.read_ns - gap)
