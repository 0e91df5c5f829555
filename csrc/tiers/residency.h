// Which record is where: decisions only, no memory, no reads. ktitan/tiers/reference/ takes the same decisions in Python.
//
// A pool is the slots of one size class; a record belongs to one pool. The least recently acquired record that nobody
// holds makes room. Slots are given out from 0 up, then those that came free, the last one first.
// The order is that of acquiring, not of releasing, so that the timing of reads decides nothing.
#pragma once

#include "../cpu/ktitan_cpu.h"

enum kt_residency_answer {
    KT_HIT = 0,      // resident; held now
    KT_MISS = 1,     // has a slot now, held, to be filled: kt_residency_loaded or kt_residency_failed follows
    KT_LOADING = 2,  // missed before and not filled yet; held once more
    KT_FULL = 3      // every slot of its pool is held; nothing changed
};

struct kt_residency;

// Null without memory, or where a pool has no slot or a record no pool.
KT_API kt_residency *kt_residency_create(const int64_t *pool_slots, int32_t pools, const int32_t *record_pool,
                                         int64_t records);
KT_API void kt_residency_destroy(kt_residency *residency);

// Hold `record`. `slot` is its slot, `victim` the record that lost it, or -1.
KT_API int32_t kt_residency_acquire(kt_residency *residency, int64_t record, int64_t *slot, int64_t *victim);
// Only look whether acquire would answer KT_HIT or KT_LOADING; no order changes.
KT_API bool kt_residency_has(const kt_residency *residency, int64_t record);
KT_API void kt_residency_loaded(kt_residency *residency, int64_t record);
// Its slot is free again and nobody holds it.
KT_API void kt_residency_failed(kt_residency *residency, int64_t record);
KT_API void kt_residency_release(kt_residency *residency, int64_t record);
// Forget a record that nobody holds; false when it is held or not there.
KT_API bool kt_residency_evict(kt_residency *residency, int64_t record);
// Slot of a record that is there, or -1.
KT_API int64_t kt_residency_slot(const kt_residency *residency, int64_t record);
// Records that are there.
KT_API int64_t kt_residency_count(const kt_residency *residency);
// Slots of a pool that no record has.
KT_API int64_t kt_residency_free(const kt_residency *residency, int32_t pool);
