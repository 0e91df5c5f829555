"""The reference store that decides as an open store does."""

from ktitan.tiers.options import HALF_LIFE_TOKENS, POLICIES
from ktitan.tiers.reference import ReferenceStore, StoreSpec


def reference_of(store, options):
    """`store` is a `TierStore`, opened with these `CacheOptions`."""
    shares = store._shares
    experts = [layer >= 0 for layer in store._layers]

    def each(values):
        pooled = iter(values)
        return [next(pooled) if is_expert else -1 for is_expert in experts]

    pools = each(shares.pool_of)
    sizes = [shares.pools[n].slot_bytes if n >= 0 else r.slot_bytes for n, r in zip(pools, store._records, strict=True)]
    return ReferenceStore(
        StoreSpec(
            pools,
            sizes,
            [pool.slots for pool in shares.pools],
            shares.cycle_bytes,
            [pool.spares for pool in shares.pools],
            each(shares.domain_of),
            shares.domain_slots,
            store._layers,
            -1 if options.policy == "auto" else POLICIES.index(options.policy),
            2 ** (1 / HALF_LIFE_TOKENS),
        )
    )
