// What a pool is made of, for its parts: pool_claim.cpp (pages for tokens to come), pool_rows.cpp (numbers in and out) and
// pool_api.cpp.
#pragma once

#include <pthread.h>

#include "pool_ledger.h"
#include "pool_sequences.h"
#include "pool_store.h"

// Positions [start, end) of a sequence are to be written.
struct Claim {
    Sequence *sequence;
    int64_t start, end;
};

struct kt_pool {
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  // held by each call; nothing that is called takes it again
    Ledger ledger;
    PageStore store;
    Sequences sequences;
    Growable<Claim> claims;  // of the present call
    int64_t marks = 0;       // calls that marked sequences
    int64_t missing_bytes = 0;

    int64_t allocated_bytes() const { return ledger.present() * store.page_bytes(); }

    // Fill `claims` with the next tokens[i] tokens of sequences[i], in `layer`, or (ANY_LAYER) from the shortest layer to
    // behind the longest. KT_OK, KT_NO_SEQUENCE, KT_WRONG_SIZE (a sequence twice, tokens below 0, too many) or KT_NO_MEMORY.
    int32_t name(int64_t layer, const int64_t *ids, const int64_t *tokens, int64_t count);
    static constexpr int64_t ANY_LAYER = -1;

    // Make the claimed positions writable: own pages, enough of them. KT_OK, or KT_POOL_FULL or KT_NO_MEMORY: then no table
    // has changed.
    int32_t claim(int64_t limit_bytes);
    // Drop the free pages with the highest numbers until at most `limit_bytes` are allocated, or none is free.
    void trim(int64_t limit_bytes);
    // Whether `more` bytes fit below the limit (below 0: none); notes what is missing.
    bool affords(__int128 more, int64_t limit_bytes);
};

class PoolLock {
public:
    explicit PoolLock(kt_pool *pool) : lock(&pool->lock) { pthread_mutex_lock(lock); }
    ~PoolLock() { pthread_mutex_unlock(lock); }
    PoolLock(const PoolLock &) = delete;
    PoolLock &operator=(const PoolLock &) = delete;

private:
    pthread_mutex_t *lock;
};
