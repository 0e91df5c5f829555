// kt_linear and kt_rows: one matrix.
#include "linear.h"

#include "detect.h"
#include "product.h"

namespace {

// Activation rows of one pass, so that temporaries stay small; more would not make kernels faster.
constexpr int64_t PASS_ROWS = 256;
constexpr int64_t PASS_BYTES = 32 << 20;
// Weight rows whose outputs are rounded together.
constexpr int64_t TILE_ROWS = 64;
// Numbers that one thread converts or quantises at a time.
constexpr int64_t FILL_NUMBERS = 16 << 10;

// One pass of kt_linear: rows [first, first + count) of x.
struct Pass {
    Weights weights;
    Plain x;
    const float *bias;
    uint8_t *out;

    Operands operands;
    int64_t first, count;
    int64_t fill_rows;            // activation rows of one item of `fill`
    int64_t piece, pieces, band;  // an item of `multiply` is `piece` weight rows by `band` activation rows

    float *rooms, *tiles, *scratches;  // for each thread: a wide row, outputs of a tile, scratch
    int64_t tile_numbers;

    void fill(int64_t item, int thread);
    void multiply(int64_t item, int thread);
    void write_tiles(int64_t row, int64_t rows, int64_t begin, const Picked &picked, int thread);
    uint8_t *out_at(int64_t m, int64_t n) const {
        return out + ((first + m) * weights.matrix->rows + n) * (x.dtype == KT_F32 ? 4 : 2);
    }
};

void Pass::fill(int64_t item, int thread) {
    float *room = rooms + thread * x.columns;
    const int64_t end = least((item + 1) * fill_rows, count);
    for (int64_t m = item * fill_rows; m < end; m++) {
        operands.fill(*weights.unit, m, kt_read_row(*weights.unit, x, first + m, room));
    }
}

void Pass::multiply(int64_t item, int thread) {
    const int64_t row = item % pieces * piece, begin = item / pieces * band;
    const int64_t rows = least(piece, weights.matrix->rows - row);
    const Picked picked = {operands.quantised(weights.form) + begin, operands.wide() + begin, least(band, count - begin)};
    if (x.dtype != KT_F32) {
        write_tiles(row, rows, begin, picked, thread);
        return;
    }
    weights.multiply(row, rows, picked, bias ? bias + row : nullptr, reinterpret_cast<float *>(out_at(begin, row)),
                     weights.matrix->rows, scratches + thread * weights.scratch());
}

void Pass::write_tiles(int64_t row, int64_t rows, int64_t begin, const Picked &picked, int thread) {
    float *tile = tiles + thread * tile_numbers;
    for (int64_t done = 0; done < rows; done += TILE_ROWS) {
        const int64_t n = row + done, some = least(TILE_ROWS, rows - done);
        weights.multiply(n, some, picked, bias ? bias + n : nullptr, tile, TILE_ROWS,
                         scratches + thread * weights.scratch());
        for (int64_t m = 0; m < picked.count; m++) {
            kt_write_row(*weights.unit, tile + m * TILE_ROWS, some, x.dtype, out_at(begin + m, n));
        }
    }
}

void fill_item(void *pass, int64_t item, int thread) { static_cast<Pass *>(pass)->fill(item, thread); }
void multiply_item(void *pass, int64_t item, int thread) { static_cast<Pass *>(pass)->multiply(item, thread); }

// Choose the items of the pass's products: pieces of weight rows, and bands of activation rows where pieces are too few.
void split(Pass &pass, int threads) {
    const int64_t rows = pass.weights.matrix->rows;
    pass.piece = kt_piece(rows, pass.weights.matrix->row_bytes, pass.count, threads);
    pass.pieces = ceil_div(rows, pass.piece);
    pass.band = pass.count;
    if (threads > 1 && pass.pieces > 1 && pass.pieces < threads) {
        pass.band = most(ceil_div(pass.count, ceil_div(threads, pass.pieces)), 32);
    }
}

void run_pass(Pass &pass, int threads) {
    const int64_t per_item = most(1, FILL_NUMBERS / pass.x.columns);
    pass.fill_rows = pass.count <= 2 * per_item ? pass.count : per_item;
    kt_run(fill_item, &pass, ceil_div(pass.count, pass.fill_rows));
    split(pass, threads);
    kt_run(multiply_item, &pass, pass.pieces * ceil_div(pass.count, pass.band));
}

struct Table {
    const kt_unit *unit;
    const kt_matrix *matrix;
    const int64_t *ids;
    int64_t count, per_item;
    float *out;
};

void rows_item(void *context, int64_t item, int) {
    const Table &table = *static_cast<const Table *>(context);
    const kt_matrix &matrix = *table.matrix;
    const int64_t end = least((item + 1) * table.per_item, table.count);
    for (int64_t t = item * table.per_item; t < end; t++) {
        const uint8_t *row = matrix.data + table.ids[t] * matrix.row_bytes;
        table.unit->dequantize[matrix.type](row, matrix.columns, table.out + t * matrix.columns);
    }
}

}  // namespace

int32_t kt_multiply(const Call &call, const kt_matrix *weights, const void *x, int32_t dtype, int64_t count,
                    const float *bias, int32_t arithmetic, void *out) {
    const kt_unit *unit = kt_active_unit();
    Pass pass = {};
    pass.weights = {unit, weights, kt_form(*unit, weights->type, arithmetic)};
    pass.x = {x, dtype, weights->columns};
    pass.bias = bias;
    pass.out = static_cast<uint8_t *>(out);
    if (pass.weights.form == FORMS || !pass.x.known()) return KT_NO_KERNEL;
    if (!kt_sound(*weights) || !kt_counts(count)) return KT_WRONG_SIZE;
    if (count == 0 || weights->rows == 0) return KT_OK;

    const int threads = call.threads();
    const int64_t fitting = most(1, PASS_BYTES / (weights->columns * (int64_t)sizeof(float)));
    const int64_t most_rows = least(count, least(PASS_ROWS, fitting));
    Arena arena;
    pass.operands.need(pass.weights.form);
    pass.operands.reserve(arena, most_rows, weights->columns, dtype == KT_F32);
    const size_t rooms = arena.add<float>(dtype == KT_F32 ? 0 : threads * weights->columns);
    pass.tile_numbers = dtype == KT_F32 ? 0 : most_rows * TILE_ROWS;
    const size_t tiles = arena.add<float>(threads * pass.tile_numbers);
    const size_t scratches = arena.add<float>(threads * pass.weights.scratch());
    if (!arena.take()) return KT_NO_MEMORY;
    pass.operands.place(arena);
    pass.rooms = arena.at<float>(rooms);
    pass.tiles = arena.at<float>(tiles);
    pass.scratches = arena.at<float>(scratches);

    for (pass.first = 0; pass.first < count; pass.first += most_rows) {
        pass.count = least(most_rows, count - pass.first);
        run_pass(pass, threads);
    }
    return KT_OK;
}

int32_t kt_linear(const kt_matrix *weights, const void *x, int32_t dtype, int64_t count, const float *bias,
                  int32_t arithmetic, void *out) {
    const Call call;
    return kt_multiply(call, weights, x, dtype, count, bias, arithmetic, out);
}

int32_t kt_look_up(const Call &, const kt_matrix *weights, const int64_t *ids, int64_t count, float *out) {
    const kt_unit *unit = kt_active_unit();
    if (kt_form(*unit, weights->type, KT_FLOAT32) == FORMS) return KT_NO_KERNEL;
    if (!kt_sound(*weights) || !kt_counts(count)) return KT_WRONG_SIZE;
    for (int64_t t = 0; t < count; t++) {
        if (ids[t] < 0 || ids[t] >= weights->rows) return KT_OUT_OF_RANGE;
    }
    Table table = {unit, weights, ids, count, most(1, FILL_NUMBERS / weights->columns), out};
    kt_run(rows_item, &table, ceil_div(count, table.per_item));
    return KT_OK;
}

int32_t kt_rows(const kt_matrix *weights, const int64_t *ids, int64_t count, float *out) {
    const Call call;
    return kt_look_up(call, weights, ids, count, out);
}
