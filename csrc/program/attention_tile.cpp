// One tile of query rows: page by page.
#include "attention.h"

#include <math.h>
#include <string.h>

#include "../cpu/product.h"

namespace {

// An additive mask this low hides a key; stock models write the lowest float32, bfloat16 or minus infinity.
constexpr float HIDDEN = -1e38f;
// Rows whose ranges differ are summed in blocks of this many.
constexpr int64_t RAGGED_ROWS = 4;

// So few rows wait for memory: keys and values are read some at a time, and the next ones are asked for meanwhile.
constexpr int64_t FEW_ROWS = 8;
constexpr int64_t CHUNK_KEYS = 12;  // float products take six rows at a time

// Asks for `count` rows of `width` numbers to come into the second-level cache.
void fetch(const float *row, int64_t stride, int64_t count, int64_t width) {
    for (int64_t i = 0; i < count; i++, row += stride) {
        for (int64_t k = 0; k < width; k += 16) __builtin_prefetch(row + k, 0, 2);
    }
}

int64_t within(int64_t position, int64_t page) { return most(0, least(position - page * KV_PAGE_TOKENS, KV_PAGE_TOKENS)); }

}  // namespace

// One page as all rows of a tile meet it.
struct Tile::Page {
    int64_t at, seen;  // its first position; keys up to the last one that a row sees
    const float *keys, *values;
    int64_t key_stride, value_stride;
    const float *next;  // keys of the page after it, where they can be asked for; else null
    int64_t first[TILE_ROWS], last[TILE_ROWS];  // what a row sees of it
    float scores[TILE_ROWS * KV_PAGE_TOKENS];
};

Tile::Tile(const AttentionCall &of, const BatchRow &in, int64_t head_of_keys, int64_t from, int64_t count)
    : call(of), sequence(in), key_head(head_of_keys), rows(count) {
    const int64_t group = call.group();
    for (int64_t r = 0; r < rows; r++) {
        token[r] = (from + r) / group;
        head[r] = key_head * group + (from + r) % group;
        const int64_t position = sequence.keys - sequence.tokens + token[r];
        const int64_t window = call.causal ? call.what->window : 0;
        end[r] = call.causal ? position + 1 : sequence.keys;
        begin[r] = window ? most(0, end[r] - window) : 0;
        query[r] = sequence.query + token[r] * call.query_token_stride + head[r] * call.query_head_stride;
        rotated[r] = query[r] + call.what->key_dim;
    }
    page_from = begin[0] / KV_PAGE_TOKENS;  // neither begin nor end falls from a row to the next
    page_end = ceil_div(end[rows - 1], KV_PAGE_TOKENS);
}

void Tile::clear(Seen &seen) const {
    for (int64_t r = 0; r < rows; r++) {
        seen.top[r] = -INFINITY;
        seen.sum[r] = 0.0f;
    }
}

void Tile::see_group(int64_t group, TileRoom &room, Seen &out) const {
    clear(out);
    const int64_t from = most(page_from, group * GROUP_PAGES), to = least(page_end, (group + 1) * GROUP_PAGES);
    for (int64_t page = from; page < to; page++) {
        see_page(page, room);
        merge(out, room.page);
    }
}

void Tile::see_page(int64_t number, TileRoom &room) const {
    Page page;
    clear(room.page);
    page.at = number * KV_PAGE_TOKENS;
    page.seen = within(end[rows - 1], number);
    read_page(number, room, page);
    const int64_t step = rows <= FEW_ROWS ? CHUNK_KEYS : KV_PAGE_TOKENS;
    for (int64_t j = 0; j < page.seen; j += step) score(page, j, least(step, page.seen - j));
    for (int64_t r = 0; r < rows; r++) {
        page.first[r] = within(begin[r], number);
        page.last[r] = within(end[r], number);
        soften(page, r, room.page);
    }
    sum_values(page, room.page.acc);
}

void Tile::read_page(int64_t number, TileRoom &room, Page &page) const {
    const bool last = number + 1 == page_end;
    page.next = nullptr;
    if (sequence.pages == nullptr) {
        page.keys = sequence.key + key_head * call.key_head_stride + page.at * call.key_token_stride;
        page.values = sequence.value + key_head * call.value_head_stride + page.at * call.value_token_stride;
        page.key_stride = call.key_token_stride;
        page.value_stride = call.value_token_stride;
        if (!last) page.next = page.keys + KV_PAGE_TOKENS * page.key_stride;
        return;
    }
    const uint8_t *data = sequence.pages[number];
    page.keys = kv_keys(call.layout, data, key_head, page.seen, room.keys);
    page.values = kv_values(call.layout, data, key_head, page.seen, room.values);
    page.key_stride = call.what->key_dim;
    page.value_stride = call.what->value_dim;
    if (last || call.layout.what.format != KT_KV_F32) return;
    page.next = kv_keys(call.layout, sequence.pages[number + 1], key_head, 0, room.keys);
}

// scores [rows, 64] of keys [first, first + count) = q.k, or with latents q.k + q2.k2.
void Tile::score(Page &page, int64_t first, int64_t count) const {
    const kt_attention &what = *call.what;
    const auto product = call.unit->float_product[KT_F32];
    const float *keys = page.keys + first * page.key_stride, *values = page.values + first * page.value_stride;
    float *scores = page.scores + first;
    if (count < KV_PAGE_TOKENS) {
        const int64_t more = least(CHUNK_KEYS, page.seen - first - count);
        if (more > 0) fetch(keys + count * page.key_stride, page.key_stride, more, what.key_dim);
        else fetch(page.values, page.value_stride, least(CHUNK_KEYS, page.seen), what.value_dim);
    }
    product(reinterpret_cast<const uint8_t *>(keys), (size_t)page.key_stride * sizeof(float), count, what.key_dim, query,
            rows, scores, KV_PAGE_TOKENS);
    if (!what.latent) return;
    float second[TILE_ROWS * KV_PAGE_TOKENS];
    product(reinterpret_cast<const uint8_t *>(values), (size_t)page.value_stride * sizeof(float), count, what.value_dim,
            rotated, rows, second, KV_PAGE_TOKENS);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t j = r * KV_PAGE_TOKENS; j < r * KV_PAGE_TOKENS + count; j++) scores[j] += second[j];
    }
}

// A row's scores to weights; a row that sees nothing here gets an empty range.
void Tile::soften(Page &page, int64_t r, Seen &out) const {
    const kt_attention &what = *call.what;
    float *s = page.scores + r * KV_PAGE_TOKENS;
    const int64_t last = page.last[r];
    for (int64_t j = 0; j < last; j++) s[j] *= what.scaling;
    if (what.softcap != 0.0f) call.unit->softcap(s, last, what.softcap);
    for (int64_t j = 0; j < least(page.first[r], last); j++) s[j] = -INFINITY;
    if (sequence.mask != nullptr) cover(page, r, s);
    float top = call.unit->largest(s, last);
    for (int64_t j = 0; j < last && top == -INFINITY; j++) {
        if (s[j] != s[j]) top = 0.0f;  // NaN is to be seen
    }
    if (top == -INFINITY) {
        page.first[r] = page.last[r] = 0;
        return;
    }
    out.top[r] = top;
    out.sum[r] = call.unit->exponentials(s, last, top);
}

void Tile::cover(const Page &page, int64_t r, float *s) const {
    const kt_mask &mask = *call.mask;
    const int64_t place = head[r] * mask.head_stride + token[r] * mask.token_stride + page.at;
    if (mask.is_bool) {
        const uint8_t *sees = sequence.mask + place;
        for (int64_t j = 0; j < page.last[r]; j++) s[j] = sees[j] ? s[j] : -INFINITY;
        return;
    }
    const float *added = reinterpret_cast<const float *>(sequence.mask) + place;
    for (int64_t j = 0; j < page.last[r]; j++) s[j] = added[j] > HIDDEN ? s[j] + added[j] : -INFINITY;
}

// acc [rows, width] = sum of weights times values, each row over its own range: what a row does not see is not even
// multiplied by 0, which would let an infinity through.
void Tile::sum_values(const Page &page, float *acc) const {
    const int64_t width = call.width();
    const float *v = call.what->latent ? page.keys : page.values;
    const int64_t ldv = call.what->latent ? page.key_stride : page.value_stride;
    const auto add = [&](int64_t r, int64_t some, int64_t from, int64_t to) {
        if (from >= to) return;
        call.unit->weighted_sum(page.scores + r * KV_PAGE_TOKENS + from, KV_PAGE_TOKENS, some, v + from * ldv, ldv,
                                to - from, width, acc + r * width, width);
    };
    memset(acc, 0, (size_t)(rows * width) * sizeof *acc);
    bool even = true;
    for (int64_t r = 1; r < rows; r++) even &= page.first[r] == page.first[0] && page.last[r] == page.last[0];
    if (even && rows > FEW_ROWS) return add(0, rows, page.first[0], page.last[0]);
    for (int64_t j = page.first[0]; even && j < page.last[0]; j += CHUNK_KEYS) {
        const int64_t to = least(j + CHUNK_KEYS, page.last[0]), more = least(CHUNK_KEYS, page.last[0] - to);
        if (more > 0) fetch(v + to * ldv, ldv, more, width);
        else if (page.next != nullptr) fetch(page.next, page.key_stride, CHUNK_KEYS, call.what->key_dim);
        add(0, rows, j, to);
    }
    if (even) return;
    for (int64_t r = 0; r < rows; r += RAGGED_ROWS) {
        const int64_t some = least(RAGGED_ROWS, rows - r);
        int64_t low = 0, high = KV_PAGE_TOKENS;  // what all of them see
        for (int64_t i = r; i < r + some; i++) {
            low = most(low, page.first[i]);
            high = least(high, page.last[i]);
        }
        for (int64_t i = r; i < r + some; i++) add(i, 1, page.first[i], low < high ? low : page.last[i]);
        add(r, some, low, high);
        for (int64_t i = r; i < r + some && low < high; i++) add(i, 1, high, page.last[i]);
    }
}

void Tile::merge(Seen &into, const Seen &from) const {
    float kept[TILE_ROWS], added[TILE_ROWS];
    for (int64_t r = 0; r < rows; r++) {
        const bool both = into.top[r] != -INFINITY && from.top[r] != -INFINITY;
        const float top = into.top[r] > from.top[r] ? into.top[r] : from.top[r];
        kept[r] = both ? into.top[r] - top : 0.0f;
        added[r] = both ? from.top[r] - top : 0.0f;
    }
    call.unit->exponentials(kept, rows, 0.0f);
    call.unit->exponentials(added, rows, 0.0f);
    const int64_t width = call.width();
    for (int64_t r = 0; r < rows; r++) {
        if (from.top[r] == -INFINITY) continue;
        float *acc = into.acc + r * width;
        if (into.top[r] == -INFINITY) {
            memcpy(acc, from.acc + r * width, (size_t)width * sizeof *acc);
            into.sum[r] = from.sum[r];
        } else {
            call.unit->blend(kept[r], added[r], from.acc + r * width, width, acc);
            into.sum[r] = into.sum[r] * kept[r] + from.sum[r] * added[r];
        }
        into.top[r] = into.top[r] > from.top[r] ? into.top[r] : from.top[r];
    }
}

// The sinks take their share; out = acc / sum, zeros where a row has seen nothing.
void Tile::finish(Seen &total) const {
    float kept[TILE_ROWS], sink[TILE_ROWS];
    for (int64_t r = 0; r < rows; r++) {
        const float top = total.top[r];
        const float logit = call.what->sinks != nullptr ? call.what->sinks[head[r]] : -INFINITY;
        const float higher = logit > top ? logit : top;
        kept[r] = top == -INFINITY ? 0.0f : top - higher;
        sink[r] = logit == -INFINITY ? -INFINITY : logit - higher;
    }
    call.unit->exponentials(kept, rows, 0.0f);
    call.unit->exponentials(sink, rows, 0.0f);
    const int64_t width = call.width();
    for (int64_t r = 0; r < rows; r++) {
        float *out = sequence.out + (token[r] * call.what->heads + head[r]) * width;
        const float *acc = total.acc + r * width;
        if (total.top[r] == -INFINITY) {
            memset(out, 0, (size_t)width * sizeof *out);
            continue;
        }
        const float share = kept[r] / (total.sum[r] * kept[r] + sink[r]);
        for (int64_t d = 0; d < width; d++) out[d] = acc[d] * share;
    }
}
