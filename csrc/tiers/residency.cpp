#include "residency.h"

#include <stdlib.h>

namespace {

constexpr int64_t NONE = -1;

struct Record {
    int64_t slot = NONE;
    int64_t older = NONE;  // neighbours in the order of acquiring, of the records of a pool that are there
    int64_t newer = NONE;
    int32_t pool = 0;
    int32_t holds = 0;
    bool loading = false;

    bool busy() const { return holds > 0 || loading; }
};

struct Pool {
    int64_t slots = 0;
    int64_t fresh = 0;       // slots from here on were never given out
    int64_t last_free = NONE;  // of a chain through `free_after`
    int64_t *free_after = nullptr;
    int64_t there = 0;
    int64_t busy = 0;  // held, or on their way
    int64_t oldest = NONE;
    int64_t newest = NONE;
};

template <class T> T *array_of(int64_t count) { return static_cast<T *>(calloc((size_t)count + 1, sizeof(T))); }

}  // namespace

struct kt_residency {
    Record *records;
    Pool *pools;
    int64_t *chains;  // `free_after` of all pools
    int32_t pool_count;
};

namespace {

void unlink(kt_residency *residency, Pool &pool, const Record &record) {
    (record.older == NONE ? pool.oldest : residency->records[record.older].newer) = record.newer;
    (record.newer == NONE ? pool.newest : residency->records[record.newer].older) = record.older;
}

void link_newest(kt_residency *residency, Pool &pool, int64_t id) {
    Record &record = residency->records[id];
    record.older = pool.newest;
    record.newer = NONE;
    (pool.newest == NONE ? pool.oldest : residency->records[pool.newest].newer) = id;
    pool.newest = id;
}

// Its slot comes free; it is not busy.
void leave(kt_residency *residency, int64_t id) {
    Record &record = residency->records[id];
    Pool &pool = residency->pools[record.pool];
    unlink(residency, pool, record);
    pool.free_after[record.slot] = pool.last_free;
    pool.last_free = record.slot;
    record.slot = NONE;
    pool.there--;
}

int64_t take_slot(Pool &pool) {
    if (pool.fresh < pool.slots) return pool.fresh++;
    const int64_t slot = pool.last_free;
    pool.last_free = pool.free_after[slot];
    return slot;
}

// The least recently acquired record that may leave. What is passed over is held by the call in progress, and that was
// acquired after everything else, so the first one nearly always does.
int64_t find_victim(const kt_residency *residency, const Pool &pool) {
    int64_t id = pool.oldest;
    while (residency->records[id].busy()) id = residency->records[id].newer;
    return id;
}

bool all_right(const int64_t *pool_slots, int32_t pools, const int32_t *record_pool, int64_t records) {
    if (pools < 0 || records < 0) return false;
    for (int32_t i = 0; i < pools; i++) {
        if (pool_slots[i] < 1 || pool_slots[i] > INT32_MAX) return false;
    }
    for (int64_t i = 0; i < records; i++) {
        if (record_pool[i] < 0 || record_pool[i] >= pools) return false;
    }
    return true;
}

}  // namespace

kt_residency *kt_residency_create(const int64_t *pool_slots, int32_t pools, const int32_t *record_pool,
                                  int64_t records) {
    if (!all_right(pool_slots, pools, record_pool, records)) return nullptr;
    kt_residency *made = array_of<kt_residency>(1);
    if (!made) return nullptr;
    int64_t slots = 0;
    for (int32_t i = 0; i < pools; i++) slots += pool_slots[i];
    made->records = array_of<Record>(records);
    made->pools = array_of<Pool>(pools);
    made->chains = array_of<int64_t>(slots);
    made->pool_count = pools;
    if (!made->records || !made->pools || !made->chains) {
        kt_residency_destroy(made);
        return nullptr;
    }
    int64_t *chain = made->chains;
    for (int32_t i = 0; i < pools; i++) {
        made->pools[i] = Pool();
        made->pools[i].slots = pool_slots[i];
        made->pools[i].free_after = chain;
        chain += pool_slots[i];
    }
    for (int64_t i = 0; i < records; i++) {
        made->records[i] = Record();
        made->records[i].pool = record_pool[i];
    }
    return made;
}

void kt_residency_destroy(kt_residency *residency) {
    if (!residency) return;
    free(residency->records);
    free(residency->pools);
    free(residency->chains);
    free(residency);
}

int32_t kt_residency_acquire(kt_residency *residency, int64_t id, int64_t *slot, int64_t *victim) {
    Record &record = residency->records[id];
    Pool &pool = residency->pools[record.pool];
    const bool there = record.slot != NONE;
    *slot = *victim = NONE;
    if (there) {
        unlink(residency, pool, record);
        pool.busy += !record.busy();
    } else {
        if (pool.busy == pool.slots) return KT_FULL;
        if (pool.there == pool.slots) {
            *victim = find_victim(residency, pool);
            leave(residency, *victim);
        }
        record.slot = take_slot(pool);
        record.loading = true;
        pool.there++;
        pool.busy++;
    }
    record.holds++;
    link_newest(residency, pool, id);
    *slot = record.slot;
    return !there ? KT_MISS : record.loading ? KT_LOADING : KT_HIT;
}

bool kt_residency_has(const kt_residency *residency, int64_t id) { return residency->records[id].slot != NONE; }

void kt_residency_loaded(kt_residency *residency, int64_t id) {
    Record &record = residency->records[id];
    if (!record.loading) return;
    record.loading = false;
    residency->pools[record.pool].busy -= !record.busy();
}

void kt_residency_failed(kt_residency *residency, int64_t id) {
    Record &record = residency->records[id];
    if (!record.loading) return;
    record.loading = false;
    record.holds = 0;
    residency->pools[record.pool].busy--;
    leave(residency, id);
}

void kt_residency_release(kt_residency *residency, int64_t id) {
    Record &record = residency->records[id];
    if (record.holds == 0) return;
    record.holds--;
    residency->pools[record.pool].busy -= !record.busy();
}

bool kt_residency_evict(kt_residency *residency, int64_t id) {
    const Record &record = residency->records[id];
    if (record.slot == NONE || record.busy()) return false;
    leave(residency, id);
    return true;
}

int64_t kt_residency_slot(const kt_residency *residency, int64_t id) { return residency->records[id].slot; }

int64_t kt_residency_count(const kt_residency *residency) {
    int64_t count = 0;
    for (int32_t i = 0; i < residency->pool_count; i++) count += residency->pools[i].there;
    return count;
}

int64_t kt_residency_free(const kt_residency *residency, int32_t pool) {
    return residency->pools[pool].slots - residency->pools[pool].there;
}
