// Records that are used one after another, over and over: the layers of a dense model. As many as fit stay (from the start of
// the cycle); the others pass through a ring of bytes and are read ahead in the order in which they were used the last
// time. Decisions only, as in residency.h; ktitan/tiers/reference/ takes the same ones.
#pragma once

#include "../cpu/ktitan_cpu.h"

enum kt_cycle_answer {
    KT_CYCLE_HIT = 0,      // there; held until kt_cycle_release
    KT_CYCLE_LOADING = 1,  // on its way: wait for kt_cycle_loaded, ask again
    KT_CYCLE_MISS = 2,     // has a place now, to be filled by the caller; then ask again
    KT_CYCLE_BUSY = 3      // other reads are on their way into the place that it needs: wait for them, ask again
};

struct kt_cycle;

// Bytes of each record (multiples of KT_PAGE) in the order of first use, and bytes for all of them. Null without memory or
// where `capacity` is below kt_cycle_least.
KT_API kt_cycle *kt_cycle_create(const int64_t *bytes, int64_t records, int64_t capacity);
KT_API void kt_cycle_destroy(kt_cycle *cycle);
// Least capacity with which these records can be used with reads ahead: the two largest neighbours.
KT_API int64_t kt_cycle_least(const int64_t *bytes, int64_t records);

// The same for the records of a cycle.
KT_API int64_t kt_cycle_needs(const kt_cycle *cycle);

// Records that stay once they are read, and bytes of the ring behind them.
KT_API int64_t kt_cycle_pinned(const kt_cycle *cycle);
KT_API int64_t kt_cycle_ring_bytes(const kt_cycle *cycle);

// Use `record`; at most one is held at a time. `at` is where it lies in the memory of the cycle.
KT_API int32_t kt_cycle_demand(kt_cycle *cycle, int64_t record, int64_t *at);
KT_API void kt_cycle_release(kt_cycle *cycle, int64_t record);
// The next record that is to be read ahead and where it goes; false when there is no room or nothing to read.
KT_API bool kt_cycle_ahead(kt_cycle *cycle, int64_t *record, int64_t *at);
KT_API void kt_cycle_loaded(kt_cycle *cycle, int64_t record);
KT_API void kt_cycle_failed(kt_cycle *cycle, int64_t record);
// Other bytes for all of them: what stays before and after stays where it is, the ring is made anew. False, with nothing
// changed, below kt_cycle_least or while a record is held or on its way.
KT_API bool kt_cycle_resize(kt_cycle *cycle, int64_t capacity);
// Whether the record is there.
KT_API bool kt_cycle_has(const kt_cycle *cycle, int64_t record);
// Forget every record that is there, but one that is held.
KT_API void kt_cycle_drop(kt_cycle *cycle);
