// How numbers lie in a page, by format, and their way in and out.
#pragma once

#include "pool.h"

// False when heads or widths are none, absurd, or no whole blocks of the format.
bool kv_layout(const kt_kv_layer &what, KvLayout *out);

// Rows [first, first + count) of a page from packed tokens: keys [count, key_heads, key_dim], values alike.
// Inside of a Call: rounding needs the default floating-point mode.
void kv_write_rows(const KvLayout &layout, uint8_t *page, int64_t first, int64_t count, const float *keys,
                   const float *values);

// Where rows go to: `token` and `head` numbers apart.
struct KvTarget {
    float *at;
    int64_t token, head;
};

// Rows [first, first + count) of all heads of a page to tensors.
void kv_read_rows(const KvLayout &layout, const uint8_t *page, int64_t first, int64_t count, KvTarget keys, KvTarget values);
