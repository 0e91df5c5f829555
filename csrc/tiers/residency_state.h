// What a residency knows, for its three parts: residency.cpp (coming and going), residency_order.cpp (who makes room first)
// and residency_sizes.cpp (how many slots).
#pragma once

#include <stdlib.h>

#include "heap.h"
#include "residency.h"

constexpr int64_t KT_NONE = -1;

struct kt_residency {
    struct Record {
        int64_t slot;
        int64_t stamp;  // of its last acquisition
        int64_t older;  // neighbours among the guesses
        int64_t newer;
        int64_t tokens;  // that chose it, in all
        int64_t recent;  // of the sequence `sequence`
        int64_t sequence;
        double score;  // tokens that chose it, decayed; in units of `worth`
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
        int64_t oldest, newest;  // guesses that nobody used yet, in the order of their coming
        int64_t records;
        Heap lingering;  // other guests that nobody holds
    };
    struct Domain {
        int32_t pool;
        int64_t records, slots, members, protected_members, pins;
        Heap heaps[2];  // members that nobody holds and that may make room; the second one: protected
    };

    Record *records;
    Pool *pools;
    Domain *domains;
    int64_t *chains;  // `free_after` of all pools
    int64_t *heaps;   // of all domains and pools
    int64_t *places;  // of each record in its heap
    int64_t count, stamp, sequence;
    int32_t pool_count, domain_count, policy;
    bool own_domains;  // the spec named them
    double growth;
    double worth;  // what a token counts now
    double mean;   // what a token of this step counts of it, on average

    Pool &pool_of(const Record &record) { return pools[record.pool]; }
    Domain &domain_of(const Record &record) { return domains[record.domain]; }

    // ---- residency_order.cpp ----
    // Does one record make room before another?
    bool before(int64_t a, int64_t b) const;
    // Which of two lingering guests leaves first: by what they count for, whatever the policy. By age none would stay until
    // its layer's turn.
    bool lingers_less(int64_t a, int64_t b) const;
    // Put a record that may make room into the heap of its domain, or of its pool's lingering guests; take it out, before
    // anything of its rank changes.
    void settle(int64_t id);
    void unsettle(int64_t id);
    void settle_all();
    // The member that makes room first, or KT_NONE.
    int64_t victim_of(const Domain &domain) const;
    // Does the policy let the victim leave for this record?
    bool admits(const Record &record, int64_t tokens, int64_t victim) const;
    void note_use(Record &record, int64_t tokens);
    // A member was acquired again.
    void protect(Record &record);
    void forget_pins();

    // ---- residency.cpp ----
    // Its slot comes free; nobody holds it.
    void leave(int64_t id);

private:
    double rank(const Record &record) const;
    double recent_tokens(const Record &record) const;
    double score_after(const Record &record, int64_t tokens) const;
};

template <class T> T *kt_zeros(int64_t count) { return static_cast<T *>(calloc((size_t)count + 1, sizeof(T))); }

// Is a record that counts so much worth the slot of one that counts `other`? For 4/5 of it, since both are guesses.
inline bool kt_is_worth(double score, double other) { return score >= 0.8 * other; }

inline void kt_give_slot(kt_residency::Pool &pool, int64_t slot) {
    pool.free_after[slot] = pool.last_free;
    pool.last_free = slot;
}
