// Coming and going: who gets a slot, and what leaves for it.
#include "residency.h"

#include "residency_state.h"

namespace {

using Record = kt_residency::Record;
using Pool = kt_residency::Pool;
using Domain = kt_residency::Domain;

int64_t take_slot(Pool &pool) {
    if (pool.fresh < pool.slots) return pool.fresh++;
    const int64_t slot = pool.last_free;
    pool.last_free = pool.free_after[slot];
    return slot;
}

// ---- guesses that nobody used ----

void enter_guesses(kt_residency *residency, Pool &pool, int64_t id) {
    Record &record = residency->records[id];
    record.guessed = true;
    record.older = pool.newest;
    record.newer = KT_NONE;
    (pool.newest == KT_NONE ? pool.oldest : residency->records[pool.newest].newer) = id;
    pool.newest = id;
}

void leave_guesses(kt_residency *residency, Pool &pool, Record &record) {
    if (!record.guessed) return;
    record.guessed = false;
    (record.older == KT_NONE ? pool.oldest : residency->records[record.older].newer) = record.newer;
    (record.newer == KT_NONE ? pool.newest : residency->records[record.newer].older) = record.older;
}

// The oldest guess that is there and unused, or KT_NONE.
int64_t displaceable(const kt_residency *residency, const Pool &pool) {
    int64_t id = pool.oldest;
    while (id != KT_NONE && residency->records[id].loading) id = residency->records[id].newer;
    return id;
}

// Have a spare slot free; false where all have guests that stay.
bool room_for_guest(kt_residency *residency, const Pool &pool, kt_placed *placed) {
    if (pool.guests < pool.spares) return true;
    const int64_t lingering = pool.lingering.empty() ? KT_NONE : pool.lingering.top();
    const int64_t guess = lingering == KT_NONE ? displaceable(residency, pool) : KT_NONE;
    if (lingering == KT_NONE && guess == KT_NONE) return false;
    placed->victim = lingering;
    placed->displaced = guess;
    residency->leave(lingering == KT_NONE ? guess : lingering);
    return true;
}

// ---- coming and going ----

void come(kt_residency *residency, int64_t id, bool as_guest) {
    Record &record = residency->records[id];
    Pool &pool = residency->pool_of(record);
    record.slot = take_slot(pool);
    record.loading = true;
    record.guest = as_guest;
    as_guest ? pool.guests++ : residency->domain_of(record).members++;
    pool.there++;
}

// Who leaves when a member makes room: nobody where a spare slot is free, else it or the lingering guest that counts least.
// That one goes only for a member that counts clearly more: layers take turns, and each would push out what the next ones left.
int64_t leaves_for(const kt_residency *residency, const Pool &pool, int64_t id) {
    if (pool.guests < pool.spares) return KT_NONE;
    if (pool.lingering.empty()) return id;
    const int64_t least = pool.lingering.top();
    return kt_is_worth(residency->records[least].score, residency->records[id].score) ? id : least;
}

// A member makes room: it lingers as a guest, or leaves.
void step_aside(kt_residency *residency, int64_t id, kt_placed *placed) {
    Record &record = residency->records[id];
    Pool &pool = residency->pool_of(record);
    Domain &domain = residency->domain_of(record);
    const int64_t leaving = leaves_for(residency, pool, id);
    placed->victim = leaving;
    if (leaving != KT_NONE) residency->leave(leaving);
    if (leaving == id) return;
    residency->unsettle(id);
    domain.protected_members -= record.is_protected;
    record.is_protected = false;
    domain.members--;
    record.guest = true;
    pool.guests++;
    residency->settle(id);
}

// A guest becomes a member where there is room, or the policy makes room for it.
void try_join(kt_residency *residency, int64_t id, int64_t tokens, kt_placed *placed) {
    Record &record = residency->records[id];
    Domain &domain = residency->domain_of(record);
    const bool full = domain.members == domain.slots;
    const int64_t victim = full ? residency->victim_of(domain) : KT_NONE;
    if (full && (victim == KT_NONE || !residency->admits(record, tokens, victim))) return;
    record.guest = false;
    residency->pool_of(record).guests--;
    if (full) step_aside(residency, victim, placed);
    domain.members++;
}

// Give a record that is not there a slot; false where none can be had.
bool make_room(kt_residency *residency, int64_t id, int64_t tokens, kt_placed *placed) {
    const Record &record = residency->records[id];
    const Domain &domain = residency->domain_of(record);
    const bool full = domain.members == domain.slots;
    const int64_t victim = full ? residency->victim_of(domain) : KT_NONE;
    const bool admitted = !full || (victim != KT_NONE && residency->admits(record, tokens, victim));
    const bool as_guest = !admitted && room_for_guest(residency, residency->pool_of(record), placed);
    if (full && !as_guest) {
        if (victim == KT_NONE) return false;
        step_aside(residency, victim, placed);
    }
    come(residency, id, as_guest);
    return true;
}

}  // namespace

void kt_residency::leave(int64_t id) {
    Record &record = records[id];
    Pool &pool = pool_of(record);
    Domain &domain = domain_of(record);
    unsettle(id);
    leave_guesses(this, pool, record);
    domain.protected_members -= record.is_protected;
    record.guest ? pool.guests-- : domain.members--;
    kt_give_slot(pool, record.slot);
    record.slot = KT_NONE;
    record.is_protected = record.guest = false;
    pool.there--;
}

int32_t kt_residency_acquire(kt_residency *residency, int64_t id, int64_t tokens, kt_placed *placed) {
    Record &record = residency->records[id];
    const bool there = record.slot != KT_NONE, foreseen = record.guessed;
    *placed = {KT_NONE, KT_NONE, KT_NONE, foreseen, 0};
    if (there) {
        residency->unsettle(id);
        leave_guesses(residency, residency->pool_of(record), record);
        if (record.guest) try_join(residency, id, tokens, placed);
    } else if (!make_room(residency, id, tokens, placed)) {
        return KT_FULL;
    }
    record.holds++;
    residency->note_use(record, tokens);
    if (there && !foreseen) residency->protect(record);
    placed->slot = record.slot;
    placed->guest = record.guest;
    return !there ? KT_MISS : record.loading ? KT_LOADING : KT_HIT;
}

int32_t kt_residency_guess(kt_residency *residency, int64_t id, kt_placed *placed) {
    const Record &record = residency->records[id];
    Pool &pool = residency->pool_of(record);
    *placed = {record.slot, KT_NONE, KT_NONE, 0, record.guest};
    if (record.slot != KT_NONE) return KT_HIT;
    if (!room_for_guest(residency, pool, placed)) return KT_FULL;
    come(residency, id, true);
    enter_guesses(residency, pool, id);
    placed->slot = record.slot;
    placed->guest = 1;
    return KT_MISS;
}

int64_t kt_residency_leaves_for_guess(const kt_residency *residency, int64_t id) {
    const Pool &pool = residency->pools[residency->records[id].pool];
    if (pool.guests < pool.spares) return -1;
    return pool.lingering.empty() ? -2 : pool.lingering.top();
}

bool kt_residency_has(const kt_residency *residency, int64_t id) { return residency->records[id].slot != KT_NONE; }

int64_t kt_residency_members(const kt_residency *residency, int64_t id) {
    return residency->domains[residency->records[id].domain].slots;
}

bool kt_residency_has_room(const kt_residency *residency, int64_t id) {
    const Domain &domain = residency->domains[residency->records[id].domain];
    return domain.members < domain.slots;
}

void kt_residency_loaded(kt_residency *residency, int64_t id) {
    Record &record = residency->records[id];
    if (!record.loading) return;
    record.loading = false;
    residency->settle(id);
}

void kt_residency_failed(kt_residency *residency, int64_t id) {
    Record &record = residency->records[id];
    if (!record.loading) return;
    record.loading = false;
    record.holds = 0;
    residency->leave(id);
}

void kt_residency_release(kt_residency *residency, int64_t id) {
    Record &record = residency->records[id];
    if (record.holds == 0) return;
    record.holds--;
    residency->settle(id);
}

bool kt_residency_evict(kt_residency *residency, int64_t id) {
    const Record &record = residency->records[id];
    if (record.slot == KT_NONE || record.busy()) return false;
    residency->leave(id);
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
