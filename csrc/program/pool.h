// What attention and programs ask of a KV pool: where a sequence's pages of a layer lie, and their numbers as float32.
//
// Pages never move, and a page that somebody else uses, too, is never written: what kv_pages says stays true until the same
// sequence is appended to, cropped or freed, whatever happens to others meanwhile.
#pragma once

#include "ktitan_program.h"

constexpr int64_t KV_PAGE_TOKENS = 64;

// How a page of a layer lies: one head's 64 rows of keys after another, then those of values.
struct KvLayout {
    kt_kv_layer what;
    int64_t key_row_bytes, value_row_bytes;  // one head's numbers of one token
    int64_t values_at;                       // bytes from the start of a page
    int64_t page_bytes;                      // a multiple of 64; pages start at multiples of 64
};

struct KvPages {
    KvLayout layout;
    int64_t tokens;  // that the layer holds of the sequence
    int64_t pages;   // that hold them: tokens / 64, rounded up
};

// Fill `out`, and `pages` with the first `room` addresses (room 0: only ask). Page i holds positions 64 i to 64 i + 63.
// KT_OK, KT_NO_SEQUENCE or KT_NO_LAYER.
int32_t kv_pages(kt_pool *pool, int64_t layer, int64_t sequence, KvPages *out, const uint8_t **pages, int64_t room);

// The first `tokens` (at most 64) rows of one head of a page, [tokens, key_dim] float32, one after another: in the page itself
// for f32, else written to `scratch` (room for 64 rows). Any thread; no lock.
const float *kv_keys(const KvLayout &layout, const uint8_t *page, int64_t head, int64_t tokens, float *scratch);
// The same of values, [tokens, value_dim].
const float *kv_values(const KvLayout &layout, const uint8_t *page, int64_t head, int64_t tokens, float *scratch);

// kt_pool_append for callers that are inside of a Call (csrc/cpu/threads.h) already.
int32_t kv_append(kt_pool *pool, int64_t layer, const int64_t *sequences, const int64_t *tokens, int64_t count,
                  const float *keys, const float *values, int64_t limit_bytes);

// Whether every layer holds `seen` tokens of a sequence, and one more can be written without another page.
bool kv_goes_on(kt_pool *pool, int64_t sequence, int64_t seen);
