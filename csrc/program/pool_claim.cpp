// Pages for tokens to come: all of a call or none. A page that others use, too, is copied before it is written.
#include "pool_state.h"

namespace {

constexpr int64_t MOST_TOKENS = (int64_t)1 << 31;  // of a sequence

// Pages of a claim's table that will be written.
struct Written {
    int64_t first, end;
};

Written written(const Claim &claim) {
    const int64_t first = claim.start / KV_PAGE_TOKENS, pages = kv_page_count(claim.end);
    const int64_t there = claim.sequence->table.count;
    if (claim.end <= claim.start) return {first, first};
    return {first, pages < there ? pages : there};
}

int64_t behind_table(const Claim &claim) {
    const int64_t more = kv_page_count(claim.end) - claim.sequence->table.count;
    return more > 0 ? more : 0;
}

// Copies that the claims need: of all users of a page, the last one to write keeps it.
int64_t count_copies(kt_pool &pool) {
    int64_t copies = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < pool.claims.count; i++) {
            const Written range = written(pool.claims[i]);
            for (int64_t at = range.first; at < range.end; at++) {
                const int64_t page = pool.claims[i].sequence->table[at];
                int32_t &pending = pool.ledger.pending(page);
                if (pass == 1) {
                    pending = 0;
                } else if (pool.ledger.references(page) - pending > 1) {
                    pending++;
                    copies++;
                }
            }
        }
    }
    return copies;
}

// Memory for `missing` more pages; false without, and those that were got are free pages now.
bool provide(kt_pool &pool, int64_t missing) {
    int64_t page = -1;
    for (; missing > 0; missing--) {
        page = pool.ledger.absent_from(page + 1);
        if (!pool.ledger.reserve(page + 1) || !pool.store.provide(page)) return false;
        pool.ledger.add(page);
    }
    return true;
}

// There are free pages enough.
void make_own(kt_pool &pool, int64_t &page) {
    if (pool.ledger.references(page) == 1) return;
    const int64_t own = pool.ledger.take(page);
    pool.store.copy_page(page, own);
    pool.ledger.release(page);
    page = own;
}

void extend(kt_pool &pool, Growable<int64_t> &table, int64_t more) {
    for (; more > 0; more--) table.push(pool.ledger.take(table.count ? table.last() : -1));
}

}  // namespace

int32_t kt_pool::name(int64_t layer, const int64_t *ids, const int64_t *tokens, int64_t count) {
    if (count < 0) return KT_WRONG_SIZE;
    if (!claims.reserve(count)) return KT_NO_MEMORY;
    claims.count = 0;
    marks++;
    for (int64_t i = 0; i < count; i++) {
        Sequence *sequence = sequences.find(ids[i]);
        if (sequence == nullptr) return KT_NO_SEQUENCE;
        if (sequence->mark == marks || tokens[i] < 0 || tokens[i] > MOST_TOKENS) return KT_WRONG_SIZE;
        sequence->mark = marks;
        const bool any = layer == ANY_LAYER;
        const int64_t start = any ? sequence->shortest() : sequence->length(layer);
        const int64_t end = (any ? sequence->longest() : start) + tokens[i];
        if (end > MOST_TOKENS) return KT_WRONG_SIZE;
        claims.push({sequence, start, end});
    }
    return KT_OK;
}

int32_t kt_pool::claim(int64_t limit_bytes) {
    if (limit_bytes >= 0 && allocated_bytes() > limit_bytes) trim(limit_bytes);
    int64_t needed = count_copies(*this);
    for (int64_t i = 0; i < claims.count; i++) needed += behind_table(claims[i]);
    if (needed == 0) return KT_OK;
    const int64_t missing = needed - ledger.free();
    if (missing > 0 && !affords((__int128)missing * store.page_bytes(), limit_bytes)) return KT_POOL_FULL;
    for (int64_t i = 0; i < claims.count; i++) {
        Growable<int64_t> &table = claims[i].sequence->table;
        if (!table.reserve(table.count + behind_table(claims[i]))) return KT_NO_MEMORY;
    }
    if (!provide(*this, missing)) return KT_NO_MEMORY;
    for (int64_t i = 0; i < claims.count; i++) {
        const Written range = written(claims[i]);
        for (int64_t at = range.first; at < range.end; at++) make_own(*this, claims[i].sequence->table[at]);
    }
    for (int64_t i = 0; i < claims.count; i++) extend(*this, claims[i].sequence->table, behind_table(claims[i]));
    return KT_OK;
}

bool kt_pool::affords(__int128 more, int64_t limit_bytes) {
    const __int128 beyond = allocated_bytes() + more - limit_bytes;
    if (limit_bytes < 0 || beyond <= 0) return true;
    missing_bytes = beyond > INT64_MAX ? INT64_MAX : (int64_t)beyond;
    return false;
}

void kt_pool::trim(int64_t limit_bytes) {
    int64_t page = ledger.numbers(), last = -1;
    while (allocated_bytes() > limit_bytes && (page = ledger.free_below(page)) >= 0) {
        ledger.drop(page);
        if (last >= 0 && last / KV_SLAB_PAGES != page / KV_SLAB_PAGES) store.give_back(last, ledger);
        last = page;
    }
    if (last >= 0) store.give_back(last, ledger);
}

bool kv_goes_on(kt_pool *pool, int64_t sequence, int64_t seen) {
    const PoolLock lock(pool);
    const Sequence *found = pool->sequences.find(sequence);
    if (found == nullptr || found->shortest() != seen || found->longest() != seen) return false;
    const int64_t page = seen / KV_PAGE_TOKENS;
    return page < found->table.count && pool->ledger.references(found->table[page]) == 1;
}
