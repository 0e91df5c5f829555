// How many slots there are, and whose: making a residency and sharing its slots out anew.
#include "residency_state.h"

namespace {

using Record = kt_residency::Record;
using Pool = kt_residency::Pool;
using Domain = kt_residency::Domain;

bool fit(const kt_residency *residency, const int64_t *pool_slots, const int64_t *pool_spares, const int64_t *domain_slots) {
    for (int32_t p = 0; p < residency->pool_count; p++) {
        int64_t taken = pool_spares ? pool_spares[p] : 0;
        if (pool_slots[p] < 1 || pool_slots[p] > residency->pools[p].most_slots || taken < 0 || taken >= pool_slots[p]) {
            return false;
        }
        for (int32_t d = 0; d < residency->domain_count && domain_slots; d++) {
            if (residency->domains[d].pool != p) continue;
            if (domain_slots[d] < 1 || domain_slots[d] > pool_slots[p]) return false;
            taken += domain_slots[d];
        }
        if (taken > pool_slots[p]) return false;
    }
    return true;
}

void set_sizes(kt_residency *residency, const int64_t *pool_slots, const int64_t *pool_spares, const int64_t *domain_slots) {
    for (int32_t p = 0; p < residency->pool_count; p++) {
        residency->pools[p].slots = pool_slots[p];
        residency->pools[p].spares = pool_spares ? pool_spares[p] : 0;
    }
    for (int32_t d = 0; d < residency->domain_count; d++) {
        Domain &domain = residency->domains[d];
        if (domain.pool == KT_NONE) continue;
        const Pool &pool = residency->pools[domain.pool];
        domain.slots = domain_slots ? domain_slots[d] : pool.slots - pool.spares;
    }
}

bool read_records(const kt_residency_spec *spec, kt_residency *made) {
    for (int32_t d = 0; d < made->domain_count; d++) {
        made->domains[d] = Domain();
        made->domains[d].pool = KT_NONE;
    }
    for (int64_t id = 0; id < made->count; id++) {
        const int32_t pool = spec->record_pool[id], domain = spec->record_domain ? spec->record_domain[id] : pool;
        made->records[id] = Record();
        made->records[id].slot = made->records[id].older = made->records[id].newer = made->places[id] = KT_NONE;
        made->records[id].pool = made->records[id].domain = KT_NONE;
        if (pool == KT_NONE) continue;
        if (pool < 0 || pool >= made->pool_count || domain < 0 || domain >= made->domain_count) return false;
        int32_t &its_pool = made->domains[domain].pool;
        if (its_pool != KT_NONE && its_pool != pool) return false;
        its_pool = pool;
        made->records[id].pool = pool;
        made->records[id].domain = domain;
        made->domains[domain].records++;
        made->pools[pool].most_slots++;
        made->pools[pool].records++;
    }
    return true;
}

// Memory of chains and heaps, once the records are known.
void lay_out(kt_residency *made) {
    int64_t *chain = made->chains, *heap = made->heaps;
    for (int32_t p = 0; p < made->pool_count; p++) {
        Pool &pool = made->pools[p];
        pool.last_free = pool.oldest = pool.newest = KT_NONE;
        pool.free_after = chain;
        chain += pool.most_slots;
        pool.lingering.use(heap);
        heap += pool.records;
    }
    for (int32_t d = 0; d < made->domain_count; d++) {
        for (Heap &part : made->domains[d].heaps) {
            part.use(heap);
            heap += made->domains[d].records;
        }
    }
}

// Guests leave, pins are forgotten, and members leave until each domain fits.
void shrink_members(kt_residency *residency) {
    for (int64_t id = 0; id < residency->count; id++) {
        if (residency->records[id].guest) residency->leave(id);
    }
    residency->forget_pins();
    for (int32_t d = 0; d < residency->domain_count; d++) {
        const Domain &domain = residency->domains[d];
        while (domain.members > domain.slots) residency->leave(residency->victim_of(domain));
    }
}

// Records in slots that are gone move to the lowest free ones, in the order of their numbers; free slots are fresh again where
// no record lies behind them.
int64_t pack(kt_residency *residency, kt_move *moves) {
    int64_t count = 0;
    for (int32_t p = 0; p < residency->pool_count; p++) {
        Pool &pool = residency->pools[p];
        // Mark the slots in use in `free_after`, which is rebuilt below.
        for (int64_t slot = 0; slot < pool.most_slots; slot++) pool.free_after[slot] = KT_NONE;
        for (int64_t id = 0; id < residency->count; id++) {
            const Record &record = residency->records[id];
            if (record.pool == p && record.slot != KT_NONE) pool.free_after[record.slot] = id;
        }
        int64_t to = 0;
        for (int64_t id = 0; id < residency->count; id++) {
            Record &record = residency->records[id];
            if (record.pool != p || record.slot < pool.slots) continue;
            while (pool.free_after[to] != KT_NONE) to++;
            moves[count++] = {id, record.slot, to};
            pool.free_after[to] = id;
            record.slot = to;
        }
        pool.fresh = pool.slots;
        while (pool.fresh > 0 && pool.free_after[pool.fresh - 1] == KT_NONE) pool.fresh--;
        pool.last_free = KT_NONE;
        for (int64_t slot = pool.fresh - 1; slot >= 0; slot--) {
            if (pool.free_after[slot] == KT_NONE) kt_give_slot(pool, slot);
        }
    }
    return count;
}

bool all_right(const kt_residency_spec *spec) {
    const bool counts = spec->pools >= 0 && spec->records >= 0 && spec->domains >= 0;
    const bool policy = spec->policy >= 0 && spec->policy < KT_POLICIES && spec->growth >= 1 && spec->growth <= 2;
    return counts && policy && (spec->record_domain == nullptr) == (spec->domain_slots == nullptr);
}

}  // namespace

kt_residency *kt_residency_create(const kt_residency_spec *spec) {
    if (!all_right(spec)) return nullptr;
    kt_residency *made = kt_zeros<kt_residency>(1);
    if (!made) return nullptr;
    made->count = spec->records;
    made->pool_count = spec->pools;
    made->domain_count = spec->record_domain ? spec->domains : spec->pools;
    made->own_domains = spec->record_domain != nullptr;
    made->policy = spec->policy;
    made->growth = spec->growth;
    made->worth = made->mean = 1;
    int64_t slots = spec->records;
    for (int32_t p = 0; p < spec->pools; p++) slots += spec->pool_slots[p] > 0 ? spec->pool_slots[p] : 0;
    made->records = kt_zeros<Record>(spec->records);
    made->pools = kt_zeros<Pool>(spec->pools);
    made->domains = kt_zeros<Domain>(made->domain_count);
    made->chains = kt_zeros<int64_t>(slots);
    made->heaps = kt_zeros<int64_t>(3 * spec->records);
    made->places = kt_zeros<int64_t>(spec->records);
    bool good = made->records && made->pools && made->domains && made->chains && made->heaps && made->places;
    for (int32_t p = 0; p < spec->pools && good; p++) made->pools[p].most_slots = spec->pool_slots[p];
    good = good && read_records(spec, made) && fit(made, spec->pool_slots, spec->pool_spares, spec->domain_slots);
    if (!good) {
        kt_residency_destroy(made);
        return nullptr;
    }
    lay_out(made);
    set_sizes(made, spec->pool_slots, spec->pool_spares, spec->domain_slots);
    return made;
}

void kt_residency_destroy(kt_residency *residency) {
    if (!residency) return;
    free(residency->records);
    free(residency->pools);
    free(residency->domains);
    free(residency->chains);
    free(residency->heaps);
    free(residency->places);
    free(residency);
}

int64_t kt_residency_resize(kt_residency *residency, const int64_t *pool_slots, const int64_t *pool_spares,
                            const int64_t *domain_slots, kt_move *moves) {
    if ((domain_slots != nullptr) != residency->own_domains) return -1;
    if (!fit(residency, pool_slots, pool_spares, domain_slots)) return -1;
    for (int64_t id = 0; id < residency->count; id++) {
        if (residency->records[id].busy()) return -1;
    }
    set_sizes(residency, pool_slots, pool_spares, domain_slots);
    shrink_members(residency);
    return pack(residency, moves);
}
