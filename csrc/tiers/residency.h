// Which record is where: decisions only, no memory, no reads. ktitan/tiers/reference/ takes the same decisions in Python.
//
// A pool is the slots of one size class. A domain is the records that compete for a number of these slots: those of a layer,
// or all of a pool. A record that came on demand is a member of its domain; when the domain is full, one that nobody holds
// makes room, as the policy says. Some slots of a pool may be spare: members never take them. Guests do: records that are
// read because they are foreseen, records that the policy does not admit, and members that made room. The last two linger:
// they stay until a slot is wanted, the one that counts least (as for KT_DECAYED_LFU) leaves first, and one that is acquired may
// become a member (again). So a guess never makes a member leave, and spare slots without guesses are as good as others.
//
// Slots are given out from 0 up, then those that came free, the last one first. What is preferred follows from the order of
// acquiring, not of releasing, so that the timing of reads decides nothing.
#pragma once

#include "../cpu/ktitan_cpu.h"

// Who makes room. Among equals the least recently acquired.
enum kt_policy {
    KT_LRU = 0,           // the least recently acquired
    KT_SLRU = 1,          // first of those acquired once since they came; 4/5 may be others (segmented LRU, Karedla 1994)
    KT_LFU = 2,           // the one that fewest tokens chose
    KT_DECAYED_LFU = 3,   // tokens count less with time: half after the half-life
    KT_SEQUENCE_LFU = 4,  // only tokens of the present sequence count
    KT_ADMITTING = 5,     // KT_DECAYED_LFU; a record that counts less than 4/5 of the one that would make room is a guest
    KT_PINNED = 6,        // KT_ADMITTING, and pinned records stay
    KT_POLICIES = 7
};

enum kt_residency_answer {
    KT_HIT = 0,      // resident; held now
    KT_MISS = 1,     // has a slot now, held, to be filled: kt_residency_loaded or kt_residency_failed follows
    KT_LOADING = 2,  // asked for before and not filled yet; held once more
    KT_FULL = 3      // no slot can be had before something is released; nothing changed
};

struct kt_residency;

struct kt_residency_spec {
    const int64_t *pool_slots;     // 1 or more of each pool
    const int64_t *pool_spares;    // of these, for guests; null: none
    const int32_t *record_pool;    // -1: never asked for
    const int32_t *record_domain;  // null: all records of a pool are a domain, of the pool's number
    const int64_t *domain_slots;   // most members, 1 or more; those of a pool's domains and its spares fit into its slots.
                                   // Null with record_domain: all slots but the spares
    int64_t records;
    int32_t pools;
    int32_t domains;
    int32_t policy;
    double growth;  // what a token counts more than the one before it: 2 ** (1 / half-life in tokens); 1: no decay
};

struct kt_placed {
    int64_t slot;       // of the record, or -1
    int64_t victim;     // the member or lingering guest that lost its slot, or -1
    int64_t displaced;  // the guess that was never used and lost its slot, or -1
    int32_t foreseen;   // 1: it was there, or on its way, because of a guess, and is used for the first time
    int32_t guest;      // 1: it is a guest now
};

struct kt_move {
    int64_t record, from, to;
};

// Null without memory, or where the sizes contradict each other.
KT_API kt_residency *kt_residency_create(const kt_residency_spec *spec);
KT_API void kt_residency_destroy(kt_residency *residency);

// The model takes a step of so many tokens: what records count for from here on.
KT_API void kt_residency_step(kt_residency *residency, int64_t tokens);
// A sequence begins.
KT_API void kt_residency_sequence(kt_residency *residency);

// Hold `record`, which so many tokens of the step chose.
KT_API int32_t kt_residency_acquire(kt_residency *residency, int64_t record, int64_t tokens, kt_placed *placed);
// Give `record` a spare slot, to be filled, that is free, or has the lingering guest that counts least, or else the oldest guess that is
// there and not used: KT_MISS, or KT_HIT where it is there or on its way, or KT_FULL. Nobody holds it.
KT_API int32_t kt_residency_guess(kt_residency *residency, int64_t record, kt_placed *placed);
// The guest that would leave for a guess of `record`; -1: none, a spare slot is free; -2: none can but another guess.
KT_API int64_t kt_residency_leaves_for_guess(const kt_residency *residency, int64_t record);
// Only look whether it is there or on its way; no order changes.
KT_API bool kt_residency_has(const kt_residency *residency, int64_t record);
// Most members of its domain.
KT_API int64_t kt_residency_members(const kt_residency *residency, int64_t record);
// Whether it would come as a member without any other leaving.
KT_API bool kt_residency_has_room(const kt_residency *residency, int64_t record);
KT_API void kt_residency_loaded(kt_residency *residency, int64_t record);
// Its slot is free again and nobody holds it.
KT_API void kt_residency_failed(kt_residency *residency, int64_t record);
KT_API void kt_residency_release(kt_residency *residency, int64_t record);
// Forget a record that nobody holds and that is not on its way; false when it is, or not there.
KT_API bool kt_residency_evict(kt_residency *residency, int64_t record);
// Slot of a record that is there, or -1.
KT_API int64_t kt_residency_slot(const kt_residency *residency, int64_t record);
// Records that are there.
KT_API int64_t kt_residency_count(const kt_residency *residency);
// Slots of a pool that no record has, and that one has.
KT_API int64_t kt_residency_free(const kt_residency *residency, int32_t pool);
KT_API int64_t kt_residency_used(const kt_residency *residency, int32_t pool);

KT_API void kt_residency_set_policy(kt_residency *residency, int32_t policy);
// A pinned record is admitted and stays while KT_PINNED decides. False: half of its domain's slots have pins.
KT_API bool kt_residency_pin(kt_residency *residency, int64_t record, bool pinned);
KT_API bool kt_residency_pinned(const kt_residency *residency, int64_t record);
// What a record counts for before any token of this run chose it, in tokens; decays like them.
KT_API void kt_residency_seed(kt_residency *residency, int64_t record, double tokens);
// What it counts for now, in tokens.
KT_API double kt_residency_score(const kt_residency *residency, int64_t record);
// Tokens that chose each record, in all.
KT_API void kt_residency_tokens(const kt_residency *residency, int64_t *tokens);
// Other numbers of slots; arguments as in the spec (domain_slots null where it was). Guests leave, pins are forgotten, of each domain those leave that would make
// room first, and records whose slots are gone move. Moves never overlap: `to` is free. Returns their number (at most the
// number of records), or -1 while a record is held or on its way, or where the sizes contradict each other.
KT_API int64_t kt_residency_resize(kt_residency *residency, const int64_t *pool_slots, const int64_t *pool_spares,
                                   const int64_t *domain_slots, kt_move *moves);
