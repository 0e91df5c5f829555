#include "residency.h"

#include <stdlib.h>

#include "heap.h"

namespace {

constexpr int64_t NONE = -1;
// Of a domain's slots, for members that were acquired again (KT_SLRU).
constexpr int64_t PROTECTED_OF_5 = 4;
// A record is admitted when it counts for this part of the one that makes room.
constexpr double ADMITTED = 0.8;
// What a token counts grows up to here; then everything is counted anew in smaller numbers.
constexpr double MOST_WORTH = 0x1p256;

struct Record {
    int64_t slot;
    int64_t stamp;     // of its last acquisition
    int64_t older;     // neighbours among the idle guests of a pool, in the order of their coming
    int64_t newer;
    int64_t tokens;    // that chose it, in all
    int64_t recent;    // of the sequence `sequence`
    int64_t sequence;
    double score;      // tokens that chose it, decayed; in units of `worth`
    int32_t pool;
    int32_t domain;
    int32_t holds;
    bool loading, guest, guessed, is_protected, pinned;

    bool busy() const { return holds > 0 || loading; }
};

struct Pool {
    int64_t slots, spares, most_slots;
    int64_t fresh;      // slots from here on were never given out
    int64_t last_free;  // of a chain through `free_after`
    int64_t *free_after;
    int64_t there, guests;
    int64_t oldest, newest;  // idle guests
};

struct Domain {
    int32_t pool;
    int64_t records, slots, members, protected_members;
    Heap heaps[2];  // members that nobody holds; the second one: protected
};

template <class T> T *array_of(int64_t count) { return static_cast<T *>(calloc((size_t)count + 1, sizeof(T))); }

}  // namespace

struct kt_residency {
    Record *records;
    Pool *pools;
    Domain *domains;
    int64_t *chains;  // `free_after` of all pools
    int64_t *heaps;   // of all domains
    int64_t *places;  // of each record in its heap
    int64_t count, stamp, sequence;
    int32_t pool_count, domain_count, policy;
    double growth;
    double worth;  // what a token counts now
    double mean;   // what a token of this step counts of it, on average

    // Who makes room first.
    bool before(int64_t a, int64_t b) const;
    double rank(const Record &record) const;
};

namespace {

double recent_tokens(const kt_residency *residency, const Record &record) {
    return record.sequence == residency->sequence ? (double)record.recent : 0.0;
}

bool decays(int32_t policy) { return policy == KT_DECAYED_LFU || policy == KT_ADMITTING || policy == KT_PINNED; }

bool admits_all(int32_t policy) { return policy != KT_ADMITTING && policy != KT_PINNED; }

auto order_of(const kt_residency *residency) {
    return [residency](int64_t a, int64_t b) { return residency->before(a, b); };
}

// ---- slots ----

int64_t take_slot(Pool &pool) {
    if (pool.fresh < pool.slots) return pool.fresh++;
    const int64_t slot = pool.last_free;
    pool.last_free = pool.free_after[slot];
    return slot;
}

void give_slot(Pool &pool, int64_t slot) {
    pool.free_after[slot] = pool.last_free;
    pool.last_free = slot;
}

// ---- members that may make room ----

bool may_make_room(const kt_residency *residency, const Record &record) {
    return record.slot != NONE && !record.guest && !record.busy() && !(record.pinned && residency->policy == KT_PINNED);
}

void settle(kt_residency *residency, int64_t id) {
    const Record &record = residency->records[id];
    if (residency->places[id] != NONE || !may_make_room(residency, record)) return;
    residency->domains[record.domain].heaps[record.is_protected].push(id, residency->places, order_of(residency));
}

void unsettle(kt_residency *residency, int64_t id) {
    const Record &record = residency->records[id];
    if (residency->places[id] == NONE) return;
    residency->domains[record.domain].heaps[record.is_protected].remove(id, residency->places, order_of(residency));
}

void settle_all(kt_residency *residency) {
    for (int32_t d = 0; d < residency->domain_count; d++) {
        for (Heap &heap : residency->domains[d].heaps) heap.clear();
    }
    for (int64_t id = 0; id < residency->count; id++) residency->places[id] = NONE;
    for (int64_t id = 0; id < residency->count; id++) settle(residency, id);
}

int64_t victim_of(const Domain &domain) {
    for (const Heap &heap : domain.heaps) {
        if (!heap.empty()) return heap.top();
    }
    return NONE;
}

// ---- idle guests ----

void unlink(kt_residency *residency, Pool &pool, Record &record) {
    (record.older == NONE ? pool.oldest : residency->records[record.older].newer) = record.newer;
    (record.newer == NONE ? pool.newest : residency->records[record.newer].older) = record.older;
    record.guessed = false;
}

void link_newest(kt_residency *residency, Pool &pool, int64_t id) {
    Record &record = residency->records[id];
    record.older = pool.newest;
    record.newer = NONE;
    record.guessed = true;
    (pool.newest == NONE ? pool.oldest : residency->records[pool.newest].newer) = id;
    pool.newest = id;
}

// The oldest guess that is there and unused, or NONE.
int64_t displaceable(const kt_residency *residency, const Pool &pool) {
    int64_t id = pool.oldest;
    while (id != NONE && residency->records[id].loading) id = residency->records[id].newer;
    return id;
}

// ---- coming and going ----

// Its slot comes free; nobody holds it.
void leave(kt_residency *residency, int64_t id) {
    Record &record = residency->records[id];
    Pool &pool = residency->pools[record.pool];
    Domain &domain = residency->domains[record.domain];
    unsettle(residency, id);
    if (record.guessed) unlink(residency, pool, record);
    domain.protected_members -= record.is_protected;
    record.guest ? pool.guests-- : domain.members--;
    give_slot(pool, record.slot);
    record.slot = NONE;
    record.is_protected = record.guest = false;
    pool.there--;
}

void come(kt_residency *residency, int64_t id, bool as_guest) {
    Record &record = residency->records[id];
    Pool &pool = residency->pools[record.pool];
    record.slot = take_slot(pool);
    record.loading = true;
    record.guest = as_guest;
    as_guest ? pool.guests++ : residency->domains[record.domain].members++;
    pool.there++;
}

double score_after(const kt_residency *residency, const Record &record, int64_t tokens) {
    return record.score + (double)tokens * residency->mean * residency->worth;
}

bool admits(const kt_residency *residency, const Record &record, int64_t tokens, int64_t victim) {
    return admits_all(residency->policy) ||
           score_after(residency, record, tokens) >= ADMITTED * residency->records[victim].score;
}

// A guest becomes a member where there is room, or the policy makes room for it.
void try_join(kt_residency *residency, int64_t id, int64_t tokens, kt_placed *placed) {
    Record &record = residency->records[id];
    Domain &domain = residency->domains[record.domain];
    if (domain.members == domain.slots) {
        const int64_t victim = victim_of(domain);
        if (victim == NONE || !admits(residency, record, tokens, victim)) return;
        leave(residency, victim);
        placed->victim = victim;
    }
    record.guest = false;
    residency->pools[record.pool].guests--;
    domain.members++;
}

// Give a record that is not there a slot; false where none can be had.
bool make_room(kt_residency *residency, int64_t id, int64_t tokens, kt_placed *placed) {
    const Record &record = residency->records[id];
    const Pool &pool = residency->pools[record.pool];
    const Domain &domain = residency->domains[record.domain];
    const bool full = domain.members == domain.slots;
    const int64_t victim = full ? victim_of(domain) : NONE;
    const bool admitted = !full || (victim != NONE && admits(residency, record, tokens, victim));
    const bool spare = pool.guests < pool.spares;
    const int64_t guess = admitted || spare ? NONE : displaceable(residency, pool);
    const bool as_guest = !admitted && (spare || guess != NONE);
    if (as_guest) {
        placed->displaced = guess;
    } else {
        if (full && victim == NONE) return false;
        placed->victim = victim;
    }
    const int64_t leaving = as_guest ? guess : victim;
    if (leaving != NONE) leave(residency, leaving);
    come(residency, id, as_guest);
    return true;
}

void protect(kt_residency *residency, Record &record) {
    Domain &domain = residency->domains[record.domain];
    const int64_t most = domain.slots * PROTECTED_OF_5 / 5;
    if (residency->policy != KT_SLRU || record.guest || record.is_protected || most == 0) return;
    record.is_protected = true;
    domain.protected_members++;
    if (domain.protected_members <= most || domain.heaps[1].empty()) return;
    const int64_t last = domain.heaps[1].top();
    unsettle(residency, last);
    residency->records[last].is_protected = false;
    domain.protected_members--;
    settle(residency, last);
}

void note_use(kt_residency *residency, Record &record, int64_t tokens) {
    record.recent = (int64_t)recent_tokens(residency, record) + tokens;
    record.sequence = residency->sequence;
    record.score = score_after(residency, record, tokens);
    record.tokens += tokens;
    record.stamp = ++residency->stamp;
}

double power(double base, int64_t exponent) {
    double result = 1;
    for (; exponent > 0; exponent >>= 1) {
        if (exponent & 1) result *= base;
        base *= base;
    }
    return result;
}

// What a token counts is 1 again, and scores are in its units.
void count_anew(kt_residency *residency) {
    const double unit = residency->worth;
    for (int64_t id = 0; id < residency->count; id++) {
        Record &record = residency->records[id];
        record.score = unit <= 0x1p1000 ? record.score / unit : 0;
    }
    residency->worth = 1;
    settle_all(residency);
}

// ---- sizes ----

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
        if (domain.pool == NONE) continue;
        const Pool &pool = residency->pools[domain.pool];
        domain.slots = domain_slots ? domain_slots[d] : pool.slots - pool.spares;
    }
}

bool read_records(const kt_residency_spec *spec, kt_residency *made) {
    for (int32_t d = 0; d < made->domain_count; d++) {
        made->domains[d] = Domain();
        made->domains[d].pool = NONE;
    }
    for (int64_t id = 0; id < made->count; id++) {
        const int32_t pool = spec->record_pool[id], domain = spec->record_domain ? spec->record_domain[id] : pool;
        made->records[id] = Record();
        made->records[id].slot = made->records[id].older = made->records[id].newer = made->places[id] = NONE;
        made->records[id].pool = made->records[id].domain = NONE;
        if (pool == NONE) continue;
        if (pool < 0 || pool >= made->pool_count || domain < 0 || domain >= made->domain_count) return false;
        int32_t &its_pool = made->domains[domain].pool;
        if (its_pool != NONE && its_pool != pool) return false;
        its_pool = pool;
        made->records[id].pool = pool;
        made->records[id].domain = domain;
        made->domains[domain].records++;
        made->pools[pool].most_slots++;
    }
    return true;
}

// Memory of chains and heaps, once the records are known.
void lay_out(kt_residency *made) {
    int64_t *chain = made->chains, *heap = made->heaps;
    for (int32_t p = 0; p < made->pool_count; p++) {
        Pool &pool = made->pools[p];
        pool.last_free = pool.oldest = pool.newest = NONE;
        pool.free_after = chain;
        chain += pool.most_slots;
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
        Record &record = residency->records[id];
        if (record.guest) leave(residency, id);
        record.pinned = false;
        settle(residency, id);
    }
    for (int32_t d = 0; d < residency->domain_count; d++) {
        const Domain &domain = residency->domains[d];
        while (domain.members > domain.slots) leave(residency, victim_of(domain));
    }
}

// Records in slots that are gone move to the lowest free ones, in the order of their numbers; free slots are fresh again where
// no record lies behind them.
int64_t pack(kt_residency *residency, kt_move *moves) {
    int64_t count = 0;
    for (int32_t p = 0; p < residency->pool_count; p++) {
        Pool &pool = residency->pools[p];
        // Mark the slots in use in `free_after`, which is rebuilt below.
        for (int64_t slot = 0; slot < pool.most_slots; slot++) pool.free_after[slot] = NONE;
        for (int64_t id = 0; id < residency->count; id++) {
            const Record &record = residency->records[id];
            if (record.pool == p && record.slot != NONE) pool.free_after[record.slot] = id;
        }
        int64_t to = 0;
        for (int64_t id = 0; id < residency->count; id++) {
            Record &record = residency->records[id];
            if (record.pool != p || record.slot < pool.slots) continue;
            while (pool.free_after[to] != NONE) to++;
            moves[count++] = {id, record.slot, to};
            pool.free_after[to] = id;
            record.slot = to;
        }
        pool.fresh = pool.slots;
        while (pool.fresh > 0 && pool.free_after[pool.fresh - 1] == NONE) pool.fresh--;
        pool.last_free = NONE;
        for (int64_t slot = pool.fresh - 1; slot >= 0; slot--) {
            if (pool.free_after[slot] == NONE) give_slot(pool, slot);
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

double kt_residency::rank(const Record &record) const {
    if (policy == KT_LFU) return (double)record.tokens;
    if (policy == KT_SEQUENCE_LFU) return recent_tokens(this, record);
    return decays(policy) ? record.score : 0;
}

bool kt_residency::before(int64_t a, int64_t b) const {
    const double rank_a = rank(records[a]), rank_b = rank(records[b]);
    return rank_a != rank_b ? rank_a < rank_b : records[a].stamp < records[b].stamp;
}

kt_residency *kt_residency_create(const kt_residency_spec *spec) {
    if (!all_right(spec)) return nullptr;
    kt_residency *made = array_of<kt_residency>(1);
    if (!made) return nullptr;
    made->count = spec->records;
    made->pool_count = spec->pools;
    made->domain_count = spec->record_domain ? spec->domains : spec->pools;
    made->policy = spec->policy;
    made->growth = spec->growth;
    made->worth = made->mean = 1;
    int64_t slots = spec->records;
    for (int32_t p = 0; p < spec->pools; p++) slots += spec->pool_slots[p] > 0 ? spec->pool_slots[p] : 0;
    made->records = array_of<Record>(spec->records);
    made->pools = array_of<Pool>(spec->pools);
    made->domains = array_of<Domain>(made->domain_count);
    made->chains = array_of<int64_t>(slots);
    made->heaps = array_of<int64_t>(2 * spec->records);
    made->places = array_of<int64_t>(spec->records);
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

void kt_residency_step(kt_residency *residency, int64_t tokens) {
    const double growth = residency->growth;
    residency->mean = 1;
    if (growth == 1 || tokens < 1) return;
    const double grown = power(growth, tokens);
    residency->worth *= grown;
    // The mean of growth^-i, i from 0 to tokens - 1.
    if (tokens > 1) residency->mean = (1 - 1 / grown) / ((double)tokens * (1 - 1 / growth));
    if (residency->worth > MOST_WORTH) count_anew(residency);
}

void kt_residency_sequence(kt_residency *residency) {
    residency->sequence++;
    if (residency->policy == KT_SEQUENCE_LFU) settle_all(residency);
}

int32_t kt_residency_acquire(kt_residency *residency, int64_t id, int64_t tokens, kt_placed *placed) {
    Record &record = residency->records[id];
    const bool there = record.slot != NONE;
    *placed = {NONE, NONE, NONE, record.guessed, 0};
    if (there) {
        unsettle(residency, id);
        if (record.guessed) unlink(residency, residency->pools[record.pool], record);
        if (record.guest) try_join(residency, id, tokens, placed);
    } else if (!make_room(residency, id, tokens, placed)) {
        return KT_FULL;
    }
    record.holds++;
    note_use(residency, record, tokens);
    if (there) protect(residency, record);
    placed->slot = record.slot;
    placed->guest = record.guest;
    return !there ? KT_MISS : record.loading ? KT_LOADING : KT_HIT;
}

int32_t kt_residency_guess(kt_residency *residency, int64_t id, kt_placed *placed) {
    const Record &record = residency->records[id];
    Pool &pool = residency->pools[record.pool];
    *placed = {record.slot, NONE, NONE, 0, record.guest};
    if (record.slot != NONE) return KT_HIT;
    if (pool.guests >= pool.spares) {
        const int64_t displaced = displaceable(residency, pool);
        if (displaced == NONE) return KT_FULL;
        leave(residency, displaced);
        placed->displaced = displaced;
    }
    come(residency, id, true);
    link_newest(residency, pool, id);
    placed->slot = record.slot;
    placed->guest = 1;
    return KT_MISS;
}

bool kt_residency_has(const kt_residency *residency, int64_t id) { return residency->records[id].slot != NONE; }

void kt_residency_loaded(kt_residency *residency, int64_t id) {
    Record &record = residency->records[id];
    if (!record.loading) return;
    record.loading = false;
    const bool unwanted = record.guest && !record.guessed && record.holds == 0;
    unwanted ? leave(residency, id) : settle(residency, id);
}

void kt_residency_failed(kt_residency *residency, int64_t id) {
    Record &record = residency->records[id];
    if (!record.loading) return;
    record.loading = false;
    record.holds = 0;
    leave(residency, id);
}

void kt_residency_release(kt_residency *residency, int64_t id) {
    Record &record = residency->records[id];
    if (record.holds == 0 || --record.holds > 0 || record.loading) return;
    record.guest ? leave(residency, id) : settle(residency, id);
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
    for (int32_t p = 0; p < residency->pool_count; p++) count += residency->pools[p].there;
    return count;
}

int64_t kt_residency_free(const kt_residency *residency, int32_t pool) {
    return residency->pools[pool].slots - residency->pools[pool].there;
}

int64_t kt_residency_used(const kt_residency *residency, int32_t pool) { return residency->pools[pool].there; }

void kt_residency_set_policy(kt_residency *residency, int32_t policy) {
    if (policy < 0 || policy >= KT_POLICIES || policy == residency->policy) return;
    residency->policy = policy;
    for (int64_t id = 0; id < residency->count; id++) residency->records[id].is_protected = false;
    for (int32_t d = 0; d < residency->domain_count; d++) residency->domains[d].protected_members = 0;
    settle_all(residency);
}

void kt_residency_pin(kt_residency *residency, int64_t id, bool pinned) {
    unsettle(residency, id);
    residency->records[id].pinned = pinned;
    settle(residency, id);
}

void kt_residency_seed(kt_residency *residency, int64_t id, double tokens) {
    unsettle(residency, id);
    residency->records[id].score = tokens * residency->worth;
    settle(residency, id);
}

void kt_residency_tokens(const kt_residency *residency, int64_t *tokens) {
    for (int64_t id = 0; id < residency->count; id++) tokens[id] = residency->records[id].tokens;
}

int64_t kt_residency_resize(kt_residency *residency, const int64_t *pool_slots, const int64_t *pool_spares,
                            const int64_t *domain_slots, kt_move *moves) {
    if (!fit(residency, pool_slots, pool_spares, domain_slots)) return -1;
    for (int64_t id = 0; id < residency->count; id++) {
        if (residency->records[id].busy()) return -1;
    }
    set_sizes(residency, pool_slots, pool_spares, domain_slots);
    shrink_members(residency);
    return pack(residency, moves);
}
