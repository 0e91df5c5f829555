// The C interface of pools (ktitan_program.h), but for numbers in and out.
#include <stdlib.h>

#include <new>

#include "pool_state.h"

namespace {

void forget(kt_pool &pool, Sequence *sequence, int64_t kept_pages) {
    for (int64_t i = kept_pages; i < sequence->table.count; i++) pool.ledger.release(sequence->table[i]);
    if (sequence->table.count > kept_pages) sequence->table.count = kept_pages;
}

bool holds_nothing(kt_pool &pool, int64_t layer) {
    bool nothing = true;
    pool.sequences.each([&](const Sequence &sequence) { nothing = nothing && sequence.length(layer) == 0; });
    return nothing;
}

// A layer without tokens is as if it had never been declared.
int32_t undeclare(kt_pool &pool, int64_t layer) {
    if (pool.store.layout(layer) == nullptr) return KT_NO_LAYER;
    if (!holds_nothing(pool, layer)) return KT_WRONG_SIZE;
    pool.store.forget(layer);
    pool.sequences.each([&](Sequence &sequence) {
        if (layer < sequence.lengths.count) sequence.lengths[layer] = Sequence::UNSEEN;
    });
    return KT_OK;
}

}  // namespace

kt_pool *kt_pool_open(void) {
    void *room = malloc(sizeof(kt_pool));
    return room == nullptr ? nullptr : new (room) kt_pool();
}

void kt_pool_close(kt_pool *pool) {
    if (pool == nullptr) return;
    pool->ledger.clear();
    pool->store.clear();
    pool->sequences.clear();
    pool->claims.clear();
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

kt_pool *kt_pool_copy(kt_pool *pool) {
    kt_pool *made = kt_pool_open();
    if (made == nullptr) return nullptr;
    const PoolLock lock(pool);
    if (pool->ledger.copy_to(made->ledger) && pool->store.copy_to(made->store, pool->ledger) &&
        pool->sequences.copy_to(made->sequences)) {
        return made;
    }
    kt_pool_close(made);
    return nullptr;
}

void kt_pool_count(kt_pool *pool, kt_pool_counts *out) {
    const PoolLock lock(pool);
    const int64_t page_bytes = pool->store.page_bytes();
    *out = {pool->ledger.present(),        pool->ledger.free(),     page_bytes, pool->allocated_bytes(),
            pool->ledger.used() * page_bytes, pool->missing_bytes};
}

int32_t kt_pool_declare(kt_pool *pool, int64_t layer, const kt_kv_layer *what, int64_t limit_bytes) {
    const PoolLock lock(pool);
    if (layer < 0 || layer >= KV_MOST_LAYERS) return KT_OUT_OF_RANGE;
    if (what == nullptr) return undeclare(*pool, layer);
    KvLayout layout;
    if (pool->store.layout(layer) != nullptr || !kv_layout(*what, &layout)) return KT_WRONG_SIZE;
    // A page of the new layer for each page that there is; free ones go first.
    if (!pool->affords((__int128)pool->ledger.present() * layout.page_bytes, limit_bytes)) {
        pool->trim(0);
        if (!pool->affords((__int128)pool->ledger.present() * layout.page_bytes, limit_bytes)) return KT_POOL_FULL;
    }
    return pool->store.declare(layer, layout, pool->ledger) ? KT_OK : KT_NO_MEMORY;
}

int64_t kt_pool_sequence(kt_pool *pool) {
    const PoolLock lock(pool);
    const Sequence *made = pool->sequences.add();
    return made == nullptr ? -1 : made->id;
}

int64_t kt_pool_fork(kt_pool *pool, int64_t sequence) {
    const PoolLock lock(pool);
    if (pool->sequences.find(sequence) == nullptr) return -1;
    Sequence *made = pool->sequences.add();
    if (made == nullptr) return -1;
    if (!pool->sequences.find(sequence)->copy_to(*made)) {
        pool->sequences.remove(made);
        return -1;
    }
    for (int64_t i = 0; i < made->table.count; i++) pool->ledger.share(made->table[i]);
    return made->id;
}

int32_t kt_pool_free(kt_pool *pool, int64_t sequence) {
    const PoolLock lock(pool);
    Sequence *found = pool->sequences.find(sequence);
    if (found == nullptr) return KT_NO_SEQUENCE;
    forget(*pool, found, 0);
    pool->sequences.remove(found);
    return KT_OK;
}

int32_t kt_pool_crop(kt_pool *pool, int64_t sequence, int64_t length) {
    const PoolLock lock(pool);
    Sequence *found = pool->sequences.find(sequence);
    if (found == nullptr) return KT_NO_SEQUENCE;
    if (length < 0) return KT_WRONG_SIZE;
    for (int64_t i = 0; i < found->lengths.count; i++) {
        if (found->lengths[i] > length) found->lengths[i] = length;
    }
    forget(*pool, found, kv_page_count(found->longest()));
    return KT_OK;
}

int64_t kt_pool_length(kt_pool *pool, int64_t layer, int64_t sequence) {
    const PoolLock lock(pool);
    const Sequence *found = pool->sequences.find(sequence);
    return found == nullptr ? -1 : layer < 0 ? 0 : found->length(layer);
}

int64_t kt_pool_table(kt_pool *pool, int64_t sequence, int64_t *pages, int64_t room) {
    const PoolLock lock(pool);
    const Sequence *found = pool->sequences.find(sequence);
    if (found == nullptr) return -1;
    for (int64_t i = 0; i < room && i < found->table.count; i++) pages[i] = found->table[i];
    return found->table.count;
}

int32_t kt_pool_reserve(kt_pool *pool, const int64_t *sequences, const int64_t *tokens, int64_t count, int64_t limit_bytes) {
    const PoolLock lock(pool);
    const int32_t status = pool->name(kt_pool::ANY_LAYER, sequences, tokens, count);
    return status == KT_OK ? pool->claim(limit_bytes) : status;
}

int64_t kt_pool_trim(kt_pool *pool, int64_t limit_bytes) {
    const PoolLock lock(pool);
    pool->trim(limit_bytes > 0 ? limit_bytes : 0);
    return pool->allocated_bytes();
}
