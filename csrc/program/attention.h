// Attention of query rows on keys in pages of 64, in an order that does not depend on how the work is split:
//
//   a page    s = scaling * q.k, softcap, mask; top = max s; p = e^(s - top); sum = sum of p; acc = sum of p * v, ascending
//   a group   16 pages aligned to position 0, merged in order
//   a row     its groups merged in order, the sink last; out = acc / sum
//   merging   top' = max(top, top2); a = e^(top - top'), b = e^(top2 - top'); sum' = sum * a + sum2 * b;
//             acc' = fma(b, acc2, a * acc); what has seen nothing is left out, and the first one is taken as it is
//
// Pages and keys that a row does not see are never part of it, so a row's bits follow from its query and what it sees.
#pragma once

#include "../cpu/kernels.h"
#include "pool.h"

constexpr int64_t GROUP_PAGES = 16;
// Query rows that share one reading of a page, at most.
constexpr int64_t TILE_ROWS = 64;

// A row of the batch: its queries are the last `tokens` of `keys` positions.
struct BatchRow {
    int64_t tokens, keys;
    const float *query;
    float *out;
    const float *key, *value;      // tensors, or
    const uint8_t *const *pages;  // a pool's
    const uint8_t *mask;          // null: none
};

// What all tiles of a call share. A query row is one head of one token; heads that share keys are neighbours.
struct AttentionCall {
    const kt_unit *unit;
    const kt_attention *what;
    const kt_mask *mask;
    KvLayout layout;  // of a pool
    int64_t query_token_stride, query_head_stride;
    int64_t key_token_stride, key_head_stride, value_token_stride, value_head_stride;  // of tensors
    bool causal;

    int64_t group() const { return what->heads / what->key_heads; }
    // Numbers of an output row.
    int64_t width() const { return what->latent ? what->key_dim : what->value_dim; }
};

// What query rows have seen so far: acc [rows, width]. top is minus infinity where it is nothing.
struct Seen {
    float top[TILE_ROWS], sum[TILE_ROWS];
    float *acc;
};

// Memory of one thread.
struct TileRoom {
    Seen page, group, total;
    float *keys, *values;  // [64, key_dim], [64, value_dim], where pages hold no float32
};

// `rows` query rows from number `from` on (token * group + head) that share one key head of a sequence.
class Tile {
public:
    Tile(const AttentionCall &call, const BatchRow &sequence, int64_t key_head, int64_t from, int64_t rows);

    // The groups that some row sees: [first, end).
    int64_t first_group() const { return page_from / GROUP_PAGES; }
    int64_t end_group() const { return (page_end + GROUP_PAGES - 1) / GROUP_PAGES; }

    void clear(Seen &seen) const;
    // What the rows see in one group.
    void see_group(int64_t group, TileRoom &room, Seen &out) const;
    void merge(Seen &into, const Seen &from) const;
    void finish(Seen &total) const;

private:
    struct Page;
    void see_page(int64_t page, TileRoom &room) const;
    void read_page(int64_t number, TileRoom &room, Page &page) const;
    void score(Page &page, int64_t first, int64_t count) const;
    void soften(Page &page, int64_t row, Seen &out) const;
    void cover(const Page &page, int64_t row, float *scores) const;
    void sum_values(const Page &page, float *acc) const;

    const AttentionCall &call;
    const BatchRow &sequence;
    int64_t key_head, rows;
    int64_t page_from, page_end;
    int64_t token[TILE_ROWS], head[TILE_ROWS];
    int64_t begin[TILE_ROWS], end[TILE_ROWS];  // positions that a row sees
    const float *query[TILE_ROWS], *rotated[TILE_ROWS];
};
