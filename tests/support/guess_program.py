"""A synthetic model of experts driven through kt_stream_experts, whose routers foresee four of five choices.

`python -P -m support.guess_program FILE MODE SEED REGIME:STEPS ...` prints what each stretch took, as JSON. FILE is
made where it is not there. What is computed does not matter, where the time goes does.
"""

import ctypes
import json
import random
import sys
import time
from pathlib import Path

import numpy as np
import torch

from ktitan.formats import Span
from ktitan.native import ExpertShape, MatrixShape, stream_experts
from ktitan.tiers.options import CacheOptions
from ktitan.tiers.record import lay_out
from ktitan.tiers.store import StoreLimits, TierStore
from ktitan.weights.files import stamp_of

LAYERS, EXPERTS, CHOSEN, HIDDEN = 2, 64, 4, 256
# The width between an expert's products: 2.1 MB each. The kernel lends a throttled drive 0.1 s of its rate after a
# pause, so what is read at a time must take longer: 2 of these at 13 MB/s.
INNER = 683
BYTES_A_SECOND = 13_000_000
RECALL = 0.8
# Seconds between two layers.
REGIMES = {"idle": 0.33, "saturated": 0.0}


def expert_bytes(inner):
    """Bytes of an expert."""
    return 3 * 4 * HIDDEN * inner


def file_bytes(inner, layers=LAYERS):
    """Bytes of all of them."""
    return layers * EXPERTS * expert_bytes(inner)


class Predictor(ctypes.Structure):
    """kt_predictor."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("router", "scale", "bias", "correction")),
        *((name, ctypes.c_int64) for name in ("first_record", "experts", "hidden", "chosen")),
        *((name, ctypes.c_int32) for name in ("dtype", "sigmoid", "groups", "groups_kept", "group_best")),
    )


def make_file(path, inner=INNER, layers=LAYERS):
    """Weights of any value."""
    if not path.exists():
        rng = np.random.default_rng(0)
        path.write_bytes(rng.standard_normal(file_bytes(inner, layers) // 4, np.float32).tobytes())


class GuessedModel:
    """Layers whose next one is foreseen from `hidden`: router row e reads number e of it; half of the experts fit."""

    def __init__(
        self,
        path,
        seed=0,
        recall=RECALL,
        inner=INNER,
        layers=LAYERS,
        policy="lru",
        prefetch="off",
        stamped=True,
        **limits,
    ):
        self.store, self.random, self.recall = TierStore(), random.Random(seed), recall
        self._next = None
        self.may_choose, self.may_guess = [range(EXPERTS)] * layers, [range(EXPERTS)] * layers  # by layer
        up, down = MatrixShape("f32", inner, HIDDEN), MatrixShape("f32", HIDDEN, inner)
        shape = ExpertShape(EXPERTS, up, up, down, "silu")
        self.banks = [self.store.add_experts(f"layer{n}", self._records(path, n, inner), shape) for n in range(layers)]
        self._router = np.eye(EXPERTS, HIDDEN, dtype=np.float32)
        self.predictors = [
            Predictor(self._router.ctypes.data, None, None, None, n * EXPERTS, EXPERTS, HIDDEN, CHOSEN, 0, 0, 1, 1, 1)
            for n in range(layers)
        ]
        # The first layer's choice for the next token is foreseen in the last layer, too: two layers make a model here.
        for bank, predictor in zip(self.banks, self.predictors[1:] + self.predictors[:1], strict=True):
            bank.struct.next = ctypes.addressof(predictor)
        cache = self.store.need.all_bytes // 2
        options = CacheOptions(policy=policy, scope="layer", prefetch=prefetch)
        self.store.open(StoreLimits(cache, options=options, **limits), {str(path): stamp_of(path)} if stamped else {})

    @staticmethod
    def _records(path, layer, inner):
        size = expert_bytes(inner)
        firsts = [(layer * EXPERTS + expert) * size for expert in range(EXPERTS)]
        return [
            lay_out(f"expert[{n}]", [[Span(str(path), first + part * size // 3, size // 3)] for part in range(3)])
            for n, first in enumerate(firsts)
        ]

    def _choose(self, tokens):
        return [[self.random.sample(able, CHOSEN) for _ in range(tokens)] for able in self.may_choose]

    def step(self, think=0.0, tokens=1, after_call=lambda: None):
        """A pass over the layers; what they answered, [layers, tokens, HIDDEN]."""
        chosen = self._next or self._choose(tokens)
        self._next = self._choose(tokens)
        answers = []
        guesses = self.may_guess[1:] + self.may_guess[:1]
        for bank, now, following, others in zip(self.banks, chosen, chosen[1:] + self._next[:1], guesses, strict=True):
            hidden = torch.tensor([[self.random.random() * 0.1 for _ in range(HIDDEN)] for _ in now])
            for row, experts in zip(hidden, following, strict=True):
                for expert in experts:
                    foreseen = self.random.random() < self.recall
                    row[expert if foreseen else self.random.choice(others)] = 1 + self.random.random()
            if think:
                time.sleep(think)
            weights = torch.full((tokens, CHOSEN), 1 / CHOSEN)
            answers.append(stream_experts(hidden, torch.tensor(now), weights, bank, "float32"))
            after_call()
        return torch.stack(answers)


def main(path, mode, seed, *stretches):
    """Run stretches of steps."""
    make_file(Path(path))
    # A policy that has spare slots whether guesses are on or not.
    model = GuessedModel(Path(path), seed=int(seed), policy="admitting", prefetch=mode)
    found = []
    for stretch in stretches:
        regime, steps = stretch.split(":")
        before, began, levels = model.store.stats(), time.perf_counter(), []
        for _ in range(int(steps)):
            model.step(REGIMES[regime])
            levels.append(model.store.stats()["guess_level"])
        after, wall = model.store.stats(), time.perf_counter() - began
        counted = {name: after[name] - before[name] for name in after if isinstance(after[name], int)}
        read = after["io"]["read_bytes"] - before["io"]["read_bytes"]
        found.append({"regime": regime, "wall": wall, "read_bytes": read, "levels": levels, **counted})
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
