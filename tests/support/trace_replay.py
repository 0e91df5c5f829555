"""Traces of routing through the native decisions: a token is a step, its experts of a layer are held together."""

from dataclasses import dataclass

import numpy as np

from ktitan.native.decisions import NativeAuto, NativeResidency
from ktitan.tiers.options import HALF_LIFE_TOKENS, CacheOptions
from ktitan.tiers.pools import Pooled, share_out
from ktitan.tiers.reference import AutoSpec, Policy, ResidencySpec

PAGE = 4096
AUTO = -1
FULL = 3


@dataclass
class Routing:
    """topk [layers, tokens, chosen], where sequences begin, and the number of experts."""

    topk: np.ndarray
    starts: set
    experts: int

    @classmethod
    def load(cls, path):
        stored = np.load(path)
        return cls(stored["topk"], set(stored["row_starts"].tolist()), int(stored["n_experts"]))

    @classmethod
    def random(cls, generator, layers=6, tokens=2000, experts=32, chosen=4):
        """Every expert is equally likely."""
        topk = np.argsort(generator.random((layers, tokens, experts)), axis=2)[:, :, :chosen]
        return cls(topk, set(range(0, tokens, 512)), experts)


class _Cache:
    """What decides: with `AUTO`, shadows beside it, as the store has them."""

    def __init__(self, routing, share, policy):
        layers, _, chosen = routing.topk.shape
        options = CacheOptions("auto" if policy == AUTO else "lru", "layer", "off")
        records = [Pooled(PAGE, layer) for layer in range(layers) for _ in range(routing.experts)]
        shares = share_out(int(share * len(records)) * PAGE, records, [], [], options)
        spares, growth = shares.pools[0].spares, 2 ** (1 / HALF_LIFE_TOKENS)
        sizes = ([shares.pools[0].slots], shares.pool_of, [spares], shares.domain_of, shares.domain_slots)
        self.residency = NativeResidency(ResidencySpec(*sizes, max(policy, Policy.LRU), growth))
        self.auto = None
        if policy == AUTO:
            shadow = AutoSpec([routing.experts] * layers, shares.domain_slots, spares, chosen, growth)
            self.auto = NativeAuto(shadow)

    def all(self):
        return [self.residency] if self.auto is None else [self.residency, self.auto]

    def demand(self, layer, experts, first):
        """One call; how many were there."""
        residency, held = self.residency, []
        if self.auto is not None:
            residency.set_policy(self.auto.policy())
            self.auto.demand(layer, experts, [1] * len(experts))
        there = [residency.has(first + expert) for expert in experts]
        for present in (True, False):
            for expert, was in zip(experts, there, strict=True):
                if was != present:
                    continue
                while residency.acquire(first + expert)[0] == FULL:
                    residency.release(held.pop(0))
                residency.loaded(first + expert)
                held.append(first + expert)
        for record in held:
            residency.release(record)
        return sum(there)


def hit_rate(routing, share, policy):
    """Of all demands, by a cache with this share of the records' slots; spare slots are part of it."""
    cache, hits = _Cache(routing, share, policy), 0
    chosen = np.sort(routing.topk, axis=2).tolist()
    for token in range(routing.topk.shape[1]):
        for one in cache.all():
            if token in routing.starts:
                one.sequence()
            one.step(1)
        for layer, tokens in enumerate(chosen):
            hits += cache.demand(layer, tokens[token], layer * routing.experts)
    return hits / routing.topk.size
