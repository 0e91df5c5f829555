#include "pool_format.h"

#include <string.h>

#include "../cpu/detect.h"

namespace {

// Q8_0 of ggml-common.h (block_q8_0): a scale in f16, then 32 signed bytes.
constexpr int64_t Q8_NUMBERS = 32, Q8_BYTES = 34;
constexpr int64_t MOST_NUMBERS = 1 << 24;  // of a token, in a layer

// Bytes of `count` numbers of a head; -1: no whole blocks, or no such format.
int64_t row_bytes(int32_t format, int64_t count) {
    switch (format) {
        case KT_KV_F32: return 4 * count;
        case KT_KV_BF16: return 2 * count;
        case KT_KV_Q8: return count % Q8_NUMBERS ? -1 : count / Q8_NUMBERS * Q8_BYTES;
        default: return -1;
    }
}

bool is_size(int64_t heads, int64_t width) {
    return heads > 0 && width > 0 && heads <= MOST_NUMBERS && width <= MOST_NUMBERS / heads;
}

// To the nearest whole number, halves away from zero, as C's roundf: |x| < 2^31.
int32_t rounded(float x) {
    const float size = x < 0 ? -x : x;
    int32_t whole = (int32_t)size;
    if (size - (float)whole >= 0.5f) whole++;
    return x < 0 ? -whole : whole;
}

// quantize_row_q8_0_ref of ggml-quants.c. A block that is not finite becomes NaN: ggml leaves that open.
void write_q8_block(const kt_unit *unit, const float *x, uint8_t *out) {
    float most = 0.0f;
    bool finite = true;
    for (int64_t i = 0; i < Q8_NUMBERS; i++) {
        const float size = __builtin_fabsf(x[i]);
        finite = finite && size <= 3.402823466e38f;
        if (size > most) most = size;
    }
    const float scale = finite ? most / 127.0f : __builtin_nanf("");
    const float factor = finite && scale != 0.0f ? 1.0f / scale : 0.0f;
    uint16_t half;
    unit->to_f16(&scale, 1, &half);
    memcpy(out, &half, sizeof half);
    int8_t *numbers = reinterpret_cast<int8_t *>(out + sizeof half);
    // Of a block of subnormals the factor is infinite, as ggml's: what would not fit is cut off.
    for (int64_t i = 0; i < Q8_NUMBERS; i++) {
        const float scaled = finite ? x[i] * factor : 0.0f;
        numbers[i] = (int8_t)rounded(scaled >= 127.0f ? 127.0f : scaled <= -127.0f ? -127.0f : scaled == scaled ? scaled : 0.0f);
    }
}

void write_row(int32_t format, const kt_unit *unit, const float *x, int64_t count, uint8_t *out) {
    if (format == KT_KV_F32) {
        memcpy(out, x, 4 * (size_t)count);
    } else if (format == KT_KV_BF16) {
        unit->to_bf16(x, count, reinterpret_cast<uint16_t *>(out));
    } else {
        for (int64_t i = 0; i < count; i += Q8_NUMBERS, out += Q8_BYTES) write_q8_block(unit, x + i, out);
    }
}

// Rows of one head lie one after another, so `count` may be that of several rows.
void read_row(int32_t format, const kt_unit *unit, const uint8_t *in, int64_t count, float *out) {
    if (format == KT_KV_F32) {
        memcpy(out, in, 4 * (size_t)count);
    } else if (format == KT_KV_BF16) {
        unit->from_bf16(reinterpret_cast<const uint16_t *>(in), count, out);
    } else {
        unit->dequantize[KT_Q8_0](in, count, out);
    }
}

// Keys or values of a page.
struct Part {
    int64_t heads, width, bytes;  // of a row
    int32_t format;
};

Part keys_of(const KvLayout &layout) {
    return {layout.what.key_heads, layout.what.key_dim, layout.key_row_bytes, layout.what.format};
}

Part values_of(const KvLayout &layout) {
    return {layout.what.value_heads, layout.what.value_dim, layout.value_row_bytes, layout.what.format};
}

void write_part(const Part &part, uint8_t *base, int64_t first, int64_t count, const float *x) {
    const kt_unit *unit = kt_active_unit();
    for (int64_t row = first; row < first + count; row++) {
        for (int64_t head = 0; head < part.heads; head++, x += part.width) {
            write_row(part.format, unit, x, part.width, base + (head * KV_PAGE_TOKENS + row) * part.bytes);
        }
    }
}

void read_part(const Part &part, const uint8_t *base, int64_t first, int64_t count, KvTarget to) {
    const kt_unit *unit = kt_active_unit();
    const bool dense = to.token == part.width;
    for (int64_t head = 0; head < part.heads; head++) {
        const uint8_t *rows = base + (head * KV_PAGE_TOKENS + first) * part.bytes;
        float *out = to.at + head * to.head;
        if (dense) {
            read_row(part.format, unit, rows, count * part.width, out);
            continue;
        }
        for (int64_t row = 0; row < count; row++) {
            read_row(part.format, unit, rows + row * part.bytes, part.width, out + row * to.token);
        }
    }
}

const float *head_rows(const Part &part, const uint8_t *base, int64_t head, int64_t tokens, float *scratch) {
    const uint8_t *rows = base + head * KV_PAGE_TOKENS * part.bytes;
    if (part.format == KT_KV_F32) return reinterpret_cast<const float *>(rows);
    read_row(part.format, kt_active_unit(), rows, tokens * part.width, scratch);
    return scratch;
}

}  // namespace

bool kv_layout(const kt_kv_layer &what, KvLayout *out) {
    if (!is_size(what.key_heads, what.key_dim) || !is_size(what.value_heads, what.value_dim)) return false;
    const int64_t key = row_bytes(what.format, what.key_dim), value = row_bytes(what.format, what.value_dim);
    if (key < 0 || value < 0) return false;
    const int64_t values_at = KV_PAGE_TOKENS * what.key_heads * key;
    *out = {what, key, value, values_at, values_at + KV_PAGE_TOKENS * what.value_heads * value};
    return true;
}

void kv_write_rows(const KvLayout &layout, uint8_t *page, int64_t first, int64_t count, const float *keys,
                   const float *values) {
    write_part(keys_of(layout), page, first, count, keys);
    write_part(values_of(layout), page + layout.values_at, first, count, values);
}

void kv_read_rows(const KvLayout &layout, const uint8_t *page, int64_t first, int64_t count, KvTarget keys, KvTarget values) {
    read_part(keys_of(layout), page, first, count, keys);
    read_part(values_of(layout), page + layout.values_at, first, count, values);
}

const float *kv_keys(const KvLayout &layout, const uint8_t *page, int64_t head, int64_t tokens, float *scratch) {
    return head_rows(keys_of(layout), page, head, tokens, scratch);
}

const float *kv_values(const KvLayout &layout, const uint8_t *page, int64_t head, int64_t tokens, float *scratch) {
    return head_rows(values_of(layout), page + layout.values_at, head, tokens, scratch);
}
