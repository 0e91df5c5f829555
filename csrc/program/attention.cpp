// kt_attend and kt_attend_pool: what the tiles of a call are, and who computes them.
#include "attention.h"

#include <stddef.h>

#include "../cpu/arena.h"
#include "../cpu/detect.h"
#include "../cpu/product.h"
#include "parts.h"

namespace {

// Below this many multiplications a call is over before another thread could help.
constexpr int64_t ALONE_PRODUCTS = 100 << 10;
// Tiles get smaller, down to this, until there is work for every thread.
constexpr int64_t LEAST_TILE_ROWS = 16;
constexpr int64_t ITEMS_EACH = 3;
// Rows of the batch that are computed together.
constexpr int64_t PASS_SEQUENCES = 64;

// A call cut into tiles. With enough of them a thread takes a tile through all its groups; otherwise groups of a tile are
// computed side by side, some at a time, and merged in order.
struct Job {
    AttentionCall call;
    BatchRow *sequences;
    int64_t *starts;  // by sequence: its first tile; [count + 1]
    int64_t count, tile_rows;
    TileRoom *rooms;  // by thread
    Seen *totals;     // by tile, and
    Seen *results;    // [tiles, side]: of groups that are computed side by side
    int64_t side, wave;
    bool alone;

    int64_t tiles() const { return starts[count]; }
    int64_t tiles_of(const BatchRow &sequence) const {
        return call.what->key_heads * ceil_div(sequence.tokens * call.group(), tile_rows);
    }
    Tile tile(int64_t number) const;
    void run(kt_task task, int64_t items) {
        if (!alone) return kt_run(task, this, items);
        for (int64_t item = 0; item < items; item++) task(this, item, 0);
    }
};

Tile Job::tile(int64_t number) const {
    int64_t low = 0, high = count;  // starts[low] <= number < starts[high]
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        (starts[middle] <= number ? low : high) = middle;
    }
    const BatchRow &sequence = sequences[low];
    const int64_t all = sequence.tokens * call.group(), each = ceil_div(all, tile_rows), local = number - starts[low];
    const int64_t from = local % each * tile_rows;
    return Tile(call, sequence, local / each, from, least(tile_rows, all - from));
}

// The last tokens of a prompt see most, so their tiles come first.
void tile_item(void *context, int64_t item, int thread) {
    const Job &job = *static_cast<const Job *>(context);
    const Tile tile = job.tile(job.tiles() - 1 - item);
    TileRoom &room = job.rooms[thread];
    tile.clear(room.total);
    for (int64_t group = tile.first_group(); group < tile.end_group(); group++) {
        tile.see_group(group, room, room.group);
        tile.merge(room.total, room.group);
    }
    tile.finish(room.total);
}

void group_item(void *context, int64_t item, int thread) {
    const Job &job = *static_cast<const Job *>(context);
    const Tile tile = job.tile(item / job.side);
    const int64_t group = tile.first_group() + job.wave * job.side + item % job.side;
    if (group < tile.end_group()) tile.see_group(group, job.rooms[thread], job.results[item]);
}

void merge_item(void *context, int64_t item, int) {
    const Job &job = *static_cast<const Job *>(context);
    const Tile tile = job.tile(item);
    const int64_t first = tile.first_group() + job.wave * job.side;
    Seen &total = job.totals[item];
    if (job.wave == 0) tile.clear(total);
    for (int64_t i = 0; i < job.side && first + i < tile.end_group(); i++) {
        tile.merge(total, job.results[item * job.side + i]);
    }
    if (first < tile.end_group() && first + job.side >= tile.end_group()) tile.finish(total);
    if (job.wave == 0 && tile.end_group() <= first) tile.finish(total);
}

// What a call needs of the arena.
struct Layout {
    size_t starts, rooms, totals, results, accs, keys, values;
    int64_t most_groups, seen_numbers;

    Layout(Job &job, Arena &arena, int threads);
    void place(Job &job, const Arena &arena, int threads) const;
};

Layout::Layout(Job &job, Arena &arena, int threads) : most_groups(1) {
    const kt_attention &what = *job.call.what;
    int64_t products = 0;
    for (int64_t i = 0; i < job.count; i++) {
        const BatchRow &of = job.sequences[i];
        const int64_t seen = what.window && job.call.causal ? least(of.keys, what.window + of.tokens) : of.keys;
        most_groups = most(most_groups, ceil_div(seen, GROUP_PAGES * KV_PAGE_TOKENS));
        products += of.tokens * what.heads * seen * (what.key_dim + what.value_dim);
    }
    job.alone = threads == 1 || products < ALONE_PRODUCTS;
    int64_t tiles = 0;
    for (job.tile_rows = TILE_ROWS;; job.tile_rows /= 2) {
        tiles = 0;
        for (int64_t i = 0; i < job.count; i++) tiles += job.tiles_of(job.sequences[i]);
        if (job.alone || job.tile_rows == LEAST_TILE_ROWS || tiles * most_groups >= ITEMS_EACH * threads) break;
    }
    const bool split = !job.alone && tiles < ITEMS_EACH * threads && most_groups > 1;
    job.side = split ? least(most_groups, ceil_div(2 * ITEMS_EACH * threads, most(tiles, 1))) : 0;
    seen_numbers = job.tile_rows * job.call.width();
    starts = arena.add<int64_t>(job.count + 1);
    rooms = arena.add<TileRoom>(threads);
    totals = arena.add<Seen>(split ? tiles : 0);
    results = arena.add<Seen>(tiles * job.side);
    accs = arena.add<float>((3 * threads + (split ? tiles : 0) + tiles * job.side) * seen_numbers);
    keys = arena.add<float>(threads * KV_PAGE_TOKENS * what.key_dim);
    values = arena.add<float>(threads * KV_PAGE_TOKENS * what.value_dim);
}

void Layout::place(Job &job, const Arena &arena, int threads) const {
    job.starts = arena.at<int64_t>(starts);
    job.starts[0] = 0;
    for (int64_t i = 0; i < job.count; i++) job.starts[i + 1] = job.starts[i] + job.tiles_of(job.sequences[i]);
    job.rooms = arena.at<TileRoom>(rooms);
    job.totals = arena.at<Seen>(totals);
    job.results = arena.at<Seen>(results);
    float *acc = arena.at<float>(accs);
    const auto give = [&acc, this](Seen &seen) {
        seen.acc = acc;
        acc += seen_numbers;
    };
    for (int t = 0; t < threads; t++) {
        TileRoom &room = job.rooms[t];
        give(room.page);
        give(room.group);
        give(room.total);
        room.keys = arena.at<float>(keys) + t * KV_PAGE_TOKENS * job.call.what->key_dim;
        room.values = arena.at<float>(values) + t * KV_PAGE_TOKENS * job.call.what->value_dim;
    }
    for (int64_t i = 0; job.side && i < job.tiles(); i++) give(job.totals[i]);
    for (int64_t i = 0; i < job.tiles() * job.side; i++) give(job.results[i]);
}

void run_all(Job &job, int64_t most_groups) {
    if (job.side == 0) return job.run(tile_item, job.tiles());
    // A tile's groups need not start at the first one, but there are no more of them than this.
    const int64_t waves = ceil_div(most_groups + 1, job.side);
    for (job.wave = 0; job.wave < waves; job.wave++) {
        job.run(group_item, job.tiles() * job.side);
        job.run(merge_item, job.tiles());
    }
}

bool sound(const kt_attention &what) {
    const bool counted = kt_counts(what.heads) && kt_counts(what.key_heads) && kt_counts(what.key_dim) &&
                         kt_counts(what.value_dim) && what.window >= 0;
    return counted && what.heads > 0 && what.key_heads > 0 && what.key_dim > 0 && what.value_dim > 0 &&
           what.heads % what.key_heads == 0 && (!what.latent || what.key_heads == 1);
}

const kt_mask *given(const kt_mask *mask) { return mask != nullptr && mask->data != nullptr ? mask : nullptr; }

const uint8_t *mask_of(const kt_mask *mask, int64_t row) {
    if (mask == nullptr) return nullptr;
    return static_cast<const uint8_t *>(mask->data) + row * mask->row_stride * (mask->is_bool ? 1 : 4);
}

int64_t query_width(const kt_attention &what) { return what.latent ? what.key_dim + what.value_dim : what.key_dim; }

}  // namespace

int32_t kt_attend_views(const Call &call, const kt_attention *what, int64_t rows, int64_t tokens, int64_t keys,
                        const kt_view &query, const kt_view &key, const kt_view &value, const kt_mask *mask,
                        int32_t causal, float *out) {
    if (!sound(*what) || !kt_counts(rows) || !kt_counts(tokens) || !kt_counts(keys)) return KT_WRONG_SIZE;
    if (causal && tokens > keys) return KT_WRONG_SIZE;
    if (tokens == 0) return KT_OK;
    mask = given(mask);
    BatchRow sequences[PASS_SEQUENCES];
    for (int64_t first = 0; first < rows; first += PASS_SEQUENCES) {
        Job job = {};
        job.call = {kt_active_unit(), what, mask, {}, query.token_stride, query.head_stride, key.token_stride,
                    key.head_stride, value.token_stride, value.head_stride, causal != 0};
        job.sequences = sequences;
        job.count = least(PASS_SEQUENCES, rows - first);
        for (int64_t i = 0; i < job.count; i++) {
            const int64_t row = first + i;
            sequences[i] = {tokens, keys, query.data + row * query.row_stride,
                            out + row * tokens * what->heads * job.call.width(), key.data + row * key.row_stride,
                            value.data + row * value.row_stride, nullptr, mask_of(mask, row)};
        }
        Arena arena;
        const Layout layout(job, arena, call.threads());
        if (!arena.take()) return KT_NO_MEMORY;
        layout.place(job, arena, call.threads());
        run_all(job, layout.most_groups);
    }
    return KT_OK;
}

namespace {

// KT_OK when the layer holds what `what` reads, and the new tokens.
int32_t check_pages(const kt_attention &what, const KvPages &pages, int64_t tokens) {
    const kt_kv_layer &layer = pages.layout.what;
    const bool fits = layer.key_heads == what.key_heads && layer.key_dim == what.key_dim &&
                      layer.value_heads == what.key_heads && layer.value_dim == what.value_dim;
    return fits && kt_counts(tokens) && tokens <= pages.tokens ? KT_OK : KT_WRONG_SIZE;
}

}  // namespace

int32_t kt_attend_pages(const Call &call, kt_pool *pool, int64_t layer, const kt_attention *what,
                        const int64_t *ids, const int64_t *tokens, int64_t count, const float *query,
                        const kt_mask *mask, float *out) {
    if (!sound(*what) || !kt_counts(count)) return KT_WRONG_SIZE;
    mask = given(mask);
    BatchRow sequences[PASS_SEQUENCES];
    for (int64_t first = 0; first < count; first += PASS_SEQUENCES) {
        const int64_t width = query_width(*what);
        Job job = {};
        job.call = {kt_active_unit(), what, mask, {}, what->heads * width, width, 0, 0, 0, 0, true};
        job.sequences = sequences;
        job.count = least(PASS_SEQUENCES, count - first);
        int64_t pages = 0;
        for (int64_t i = 0; i < job.count; i++) {
            KvPages found;
            int32_t status = kv_pages(pool, layer, ids[first + i], &found, nullptr, 0);
            if (status == KT_OK) status = check_pages(*what, found, tokens[first + i]);
            if (status != KT_OK) return status;
            job.call.layout = found.layout;
            const int64_t some = tokens[first + i];
            sequences[i] = {some, found.tokens, query, out, nullptr, nullptr, nullptr, mask_of(mask, first + i)};
            query += some * what->heads * width;
            out += some * what->heads * job.call.width();
            pages += ceil_div(found.tokens, KV_PAGE_TOKENS);
        }
        Arena arena;
        const size_t tables = arena.add<const uint8_t *>(pages);
        const Layout layout(job, arena, call.threads());
        if (!arena.take()) return KT_NO_MEMORY;
        const uint8_t **table = arena.at<const uint8_t *>(tables);
        for (int64_t i = 0; i < job.count; i++) {
            KvPages found;
            const int64_t room = ceil_div(sequences[i].keys, KV_PAGE_TOKENS);
            const int32_t status = kv_pages(pool, layer, ids[first + i], &found, table, room);
            if (status != KT_OK) return status;
            sequences[i].pages = table;
            table += room;
        }
        layout.place(job, arena, call.threads());
        run_all(job, layout.most_groups);
    }
    return KT_OK;
}

int32_t kt_attend(const kt_attention *what, int64_t rows, int64_t tokens, int64_t keys, const kt_view *query,
                  const kt_view *key, const kt_view *value, const kt_mask *mask, int32_t causal, float *out) {
    const Call call;
    return kt_attend_views(call, what, rows, tokens, keys, *query, *key, *value, mask, causal, out);
}

int32_t kt_attend_pool(kt_pool *pool, int64_t layer, const kt_attention *what, const int64_t *sequences,
                       const int64_t *tokens, int64_t count, const float *query, const kt_mask *mask, float *out) {
    const Call call;
    return kt_attend_pages(call, pool, layer, what, sequences, tokens, count, query, mask, out);
}
