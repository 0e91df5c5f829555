#include "product.h"

#include <string.h>

#include "formats.h"

namespace {

// A piece reads this much, so that claiming it costs little and memory is read in long runs; with several activation
// rows a piece takes as much longer.
constexpr int64_t PIECE_BYTES = 200 << 10;
// Pieces for each thread where the matrix is large, so that a thread that falls behind leaves its share to others.
constexpr int64_t PIECES_EACH = 4;
// Below this a call is over before another thread could help.
constexpr int64_t ALONE_BYTES = 64 << 10;
// Kernels work on 16 weight rows at a time.
constexpr int64_t ROWS_AT_ONCE = 16;
// Dequantised weights stay in the second-level cache.
constexpr int64_t STRIP_NUMBERS = 32 << 10;

// Numbers and bytes of a block of each type.
struct BlockSizes {
    int64_t numbers[KT_TYPES], bytes[KT_TYPES];
};

template <int... types> constexpr BlockSizes sizes_of(TypeList<types...>) {
    BlockSizes sizes = {};
    ((sizes.numbers[types] = Format<types>::block, sizes.bytes[types] = Format<types>::bytes), ...);
    return sizes;
}

constexpr BlockSizes PLAIN_SIZES = sizes_of(TypeList<KT_F32, KT_F16, KT_BF16>());
constexpr BlockSizes PACKED_SIZES = sizes_of(PackedTypes());

}  // namespace

bool kt_sound(const kt_matrix &matrix) {
    const BlockSizes &sizes = PACKED_SIZES.numbers[matrix.type] ? PACKED_SIZES : PLAIN_SIZES;
    const int64_t numbers = sizes.numbers[matrix.type];
    return kt_counts(matrix.rows) && kt_counts(matrix.columns) && matrix.columns > 0 && matrix.columns % numbers == 0 &&
           matrix.row_bytes >= matrix.columns / numbers * sizes.bytes[matrix.type] &&
           matrix.row_bytes <= (int64_t)INT32_MAX * 8;
}

Form kt_form(const kt_unit &unit, int32_t type, int32_t arithmetic) {
    if (type < 0 || type >= KT_TYPES || unit.dequantize[type] == nullptr) return FORMS;
    if (unit.float_product[type] != nullptr || arithmetic == KT_FLOAT32) return WIDE;
    switch (type) {
        case KT_Q4_0:
        case KT_Q4_1:
        case KT_Q5_0:
        case KT_Q5_1:
        case KT_Q8_0:
        case KT_IQ4_NL:
        case KT_MXFP4:
        case KT_NVFP4:
            return BLOCKS_32;
        default:
            return BLOCKS_256;
    }
}

const uint8_t *Plain::row(int64_t index) const {
    return static_cast<const uint8_t *>(data) + index * columns * (dtype == KT_F32 ? 4 : 2);
}

const float *kt_read_row(const kt_unit &unit, const Plain &rows, int64_t index, float *room) {
    const void *row = rows.row(index);
    if (rows.dtype == KT_F32) return static_cast<const float *>(row);
    const auto convert = rows.dtype == KT_F16 ? unit.from_f16 : unit.from_bf16;
    convert(static_cast<const uint16_t *>(row), rows.columns, room);
    return room;
}

void kt_write_row(const kt_unit &unit, const float *x, int64_t count, int32_t dtype, void *out) {
    if (dtype == KT_F32) {
        memcpy(out, x, (size_t)count * sizeof *x);
        return;
    }
    const auto convert = dtype == KT_F16 ? unit.to_f16 : unit.to_bf16;
    convert(x, count, static_cast<uint16_t *>(out));
}

void Operands::reserve(Arena &arena, int64_t rows, int64_t width, bool borrow) {
    columns = width;
    borrowed = borrow;
    if (needed[WIDE]) {
        wide_place = arena.add<const float *>(rows);
        if (!borrow) copies_place = arena.add<float>(rows * columns);
    }
    for (int form = BLOCKS_32; form < FORMS; form++) {
        if (!needed[form]) continue;
        Blocks &b = blocks[form];
        b.q_place = arena.add<int8_t>(rows * columns);
        b.d_place = arena.add<float>(rows * (columns / BLOCK_OF[form]));
        b.sums_place = arena.add<int16_t>(rows * ceil_div(columns, 16));
        b.rows_place = arena.add<kt_row>(rows);
    }
}

void Operands::place(const Arena &arena) {
    wide_rows = arena.at<const float *>(wide_place);
    copies = arena.at<float>(copies_place);
    for (int form = BLOCKS_32; form < FORMS; form++) {
        Blocks &b = blocks[form];
        b.q = arena.at<int8_t>(b.q_place);
        b.d = arena.at<float>(b.d_place);
        b.sums = arena.at<int16_t>(b.sums_place);
        b.rows = arena.at<kt_row>(b.rows_place);
    }
}

void Operands::fill(const kt_unit &unit, int64_t row, const float *x) {
    if (needed[WIDE]) {
        if (!borrowed) {
            float *copy = copies + row * columns;
            memcpy(copy, x, (size_t)columns * sizeof *x);
            x = copy;
        }
        wide_rows[row] = x;
    }
    for (int form = BLOCKS_32; form < FORMS; form++) {
        if (!needed[form]) continue;
        const Blocks &b = blocks[form];
        int8_t *q = b.q + row * columns;
        float *d = b.d + row * (columns / BLOCK_OF[form]);
        int16_t *sums = b.sums + row * ceil_div(columns, 16);
        unit.quantize(x, columns, BLOCK_OF[form], q, d, sums);
        b.rows[row] = {q, d, sums};
    }
}

int64_t Weights::strip() const { return most(1, least(ROWS_AT_ONCE, STRIP_NUMBERS / matrix->columns)); }

int64_t Weights::scratch() const { return dequantises() ? strip() * matrix->columns : 0; }

void Weights::multiply(int64_t first, int64_t rows, const Picked &x, const float *bias, float *out, int64_t ldo,
                       float *scratch) const {
    const int64_t columns = matrix->columns;
    const size_t row_bytes = (size_t)matrix->row_bytes;
    const uint8_t *data = matrix->data + (size_t)first * row_bytes;
    if (form != WIDE) {
        unit->product[matrix->type](data, row_bytes, rows, columns, x.quantised, x.count, out, ldo);
    } else if (!dequantises()) {
        unit->float_product[matrix->type](data, row_bytes, rows, columns, x.wide, x.count, out, ldo);
    } else {
        const size_t wide_bytes = (size_t)columns * sizeof(float);
        for (int64_t done = 0; done < rows; done += strip()) {
            const int64_t some = least(strip(), rows - done);
            for (int64_t n = 0; n < some; n++) {
                unit->dequantize[matrix->type](data + (size_t)(done + n) * row_bytes, columns, scratch + n * columns);
            }
            unit->float_product[KT_F32](reinterpret_cast<const uint8_t *>(scratch), wide_bytes, some, columns, x.wide,
                                        x.count, out + done, ldo);
        }
    }
    if (bias == nullptr) return;
    for (int64_t m = 0; m < x.count; m++) {
        for (int64_t n = 0; n < rows; n++) out[m * ldo + n] += bias[n];
    }
}

int64_t kt_piece(int64_t rows, int64_t row_bytes, int64_t count, int threads) {
    if (threads == 1 || rows * row_bytes * count <= ALONE_BYTES) return most(rows, 1);
    const int64_t large = ceil_div(PIECE_BYTES / least(count, ROWS_AT_ONCE), row_bytes);
    const int64_t wanted = most(ceil_div(rows, threads * PIECES_EACH), large);
    // Even when pieces get small, every thread has one.
    const int64_t piece = least(wanted, ceil_div(rows, threads));
    return ceil_div(piece, ROWS_AT_ONCE) * ROWS_AT_ONCE;
}
