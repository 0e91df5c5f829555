// Numbers in and out of the pages of a sequence.
#include "../cpu/threads.h"
#include "pool_state.h"

namespace {

void write(const kt_pool &pool, int64_t layer, const Claim &claim, const float *keys, const float *values) {
    const KvLayout &layout = *pool.store.layout(layer);
    const int64_t key = layout.what.key_heads * layout.what.key_dim;
    const int64_t value = layout.what.value_heads * layout.what.value_dim;
    for (int64_t at = claim.start; at < claim.end;) {
        const int64_t row = at % KV_PAGE_TOKENS, left = claim.end - at;
        const int64_t rows = left < KV_PAGE_TOKENS - row ? left : KV_PAGE_TOKENS - row;
        uint8_t *page = pool.store.page(layer, claim.sequence->table[at / KV_PAGE_TOKENS]);
        kv_write_rows(layout, page, row, rows, keys + (at - claim.start) * key, values + (at - claim.start) * value);
        at += rows;
    }
}

// Tokens [first, first + count) of a sequence to tensors that begin with them.
int32_t read(kt_pool *pool, int64_t layer, int64_t sequence, int64_t first, int64_t count, KvTarget keys, KvTarget values) {
    const KvLayout *layout = pool->store.layout(layer);
    if (layout == nullptr) return KT_NO_LAYER;
    const Sequence *found = pool->sequences.find(sequence);
    if (found == nullptr) return KT_NO_SEQUENCE;
    const int64_t length = found->length(layer);
    if (first < 0 || count < 0 || first > length || count > length - first) return KT_OUT_OF_RANGE;
    for (int64_t at = first; at < first + count;) {
        const int64_t row = at % KV_PAGE_TOKENS, left = first + count - at;
        const int64_t rows = left < KV_PAGE_TOKENS - row ? left : KV_PAGE_TOKENS - row;
        const uint8_t *page = pool->store.page(layer, found->table[at / KV_PAGE_TOKENS]);
        const KvTarget to_keys = {keys.at + (at - first) * keys.token, keys.token, keys.head};
        const KvTarget to_values = {values.at + (at - first) * values.token, values.token, values.head};
        kv_read_rows(*layout, page, row, rows, to_keys, to_values);
        at += rows;
    }
    return KT_OK;
}

}  // namespace

int32_t kv_pages(kt_pool *pool, int64_t layer, int64_t sequence, KvPages *out, const uint8_t **pages, int64_t room) {
    const PoolLock lock(pool);
    const KvLayout *layout = pool->store.layout(layer);
    if (layout == nullptr) return KT_NO_LAYER;
    const Sequence *found = pool->sequences.find(sequence);
    if (found == nullptr) return KT_NO_SEQUENCE;
    const int64_t tokens = found->length(layer);
    *out = {*layout, tokens, kv_page_count(tokens)};
    for (int64_t i = 0; i < room && i < out->pages; i++) pages[i] = pool->store.page(layer, found->table[i]);
    return KT_OK;
}

int32_t kv_append(kt_pool *pool, int64_t layer, const int64_t *sequences, const int64_t *tokens, int64_t count,
                  const float *keys, const float *values, int64_t limit_bytes) {
    const PoolLock lock(pool);
    const KvLayout *layout = pool->store.layout(layer);
    if (layout == nullptr) return KT_NO_LAYER;
    int32_t status = pool->name(layer, sequences, tokens, count);
    if (status != KT_OK) return status;
    for (int64_t i = 0; i < count; i++) {
        if (!pool->claims[i].sequence->lengths.reserve(layer + 1)) return KT_NO_MEMORY;
    }
    status = pool->claim(limit_bytes);
    if (status != KT_OK) return status;
    for (int64_t i = 0; i < count; i++) {
        const Claim &claim = pool->claims[i];
        write(*pool, layer, claim, keys, values);
        keys += tokens[i] * layout->what.key_heads * layout->what.key_dim;
        values += tokens[i] * layout->what.value_heads * layout->what.value_dim;
        claim.sequence->lengths.fill_up_to(layer + 1, Sequence::UNSEEN);
        claim.sequence->lengths[layer] = claim.end;
    }
    return KT_OK;
}

int32_t kt_pool_append(kt_pool *pool, int64_t layer, const int64_t *sequences, const int64_t *tokens, int64_t count,
                       const float *keys, const float *values, int64_t limit_bytes) {
    const Call call;
    return kv_append(pool, layer, sequences, tokens, count, keys, values, limit_bytes);
}

int32_t kt_pool_read(kt_pool *pool, int64_t layer, int64_t sequence, int64_t first, int64_t count, float *keys,
                     float *values) {
    const PoolLock lock(pool);
    const KvLayout *layout = pool->store.layout(layer);
    if (layout == nullptr) return KT_NO_LAYER;
    const kt_kv_layer &what = layout->what;
    return read(pool, layer, sequence, first, count, {keys, what.key_heads * what.key_dim, what.key_dim},
                {values, what.value_heads * what.value_dim, what.value_dim});
}

int32_t kt_pool_gather(kt_pool *pool, int64_t layer, const int64_t *sequences, int64_t count, int64_t length, float *keys,
                       float *values) {
    const PoolLock lock(pool);
    const KvLayout *layout = pool->store.layout(layer);
    if (layout == nullptr) return KT_NO_LAYER;
    const kt_kv_layer &what = layout->what;
    for (int64_t i = 0; i < count; i++) {
        const int32_t status = read(pool, layer, sequences[i], 0, length, {keys, what.key_dim, length * what.key_dim},
                                    {values, what.value_dim, length * what.value_dim});
        if (status != KT_OK) return status;
        keys += what.key_heads * length * what.key_dim;
        values += what.value_heads * length * what.value_dim;
    }
    return KT_OK;
}
