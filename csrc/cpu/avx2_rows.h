// Products with few activation rows (1 to 3): weight rows one after another in memory order.
#pragma once

#include "avx2_terms.h"

namespace {

constexpr int FEW = 3;  // most activation rows that share one unpacking

// How far ahead of their use weights are asked for. The processor's own fetching stops at each 4 KiB page; 4 to 16 KiB
// ahead measured alike: weights outside the caches were read 1.4 times as fast as without.
constexpr int64_t AHEAD_BYTES = 8192;

template <int type> KT_INLINE int64_t bytes_of(int64_t columns) {
    return columns / Format<type>::block * Format<type>::bytes;
}

// Terms of one weight row: `count` of them from `column` on, to row r of the term tables. The weights end at `end`.
template <int type, int M>
void row_terms(const uint8_t *row, int64_t column, int count, const kt_row *x, int r, Terms *terms,
               const uint8_t *end) {
    for (int t = 0; t < count; t += 8) {
        Output<M> out;
        for (int m = 0; m < M; m++) {
            out.x[m] = terms[m].x[r] + t;
            out.y[m] = terms[m].y[r] + t;
        }
        const int part = count - t < 8 ? count - t : 8;
        const int64_t from = column + (int64_t)t * term_columns<type>();
        const int64_t ahead = bytes_of<type>(from) + AHEAD_BYTES, left = end - row;
        const int64_t to = ahead + bytes_of<type>(part * term_columns<type>());
        fetch(row + (ahead < left ? ahead : left), row + (to < left ? to : left));
        if (part == 8 && Format<type>::block < 256) {  // a constant, so that the loop over the blocks is unrolled
            make_terms<type, M>(row, from, 8, x, out);
        } else {
            make_terms<type, M>(row, from, part, x, out);
        }
    }
}

template <int type, int M>
void few_rows(const uint8_t *weights, size_t row_bytes, int64_t rows, int64_t columns, const kt_row *x, float *out,
              int64_t ldo) {
    constexpr int64_t most = (int64_t)CHAIN_TERMS * term_columns<type>();
    const uint8_t *const end = weights + (size_t)(rows - 1) * row_bytes + bytes_of<type>(columns);
    Terms terms[M];
    if (rows % CHAIN_ROWS != 0) memset(terms, 0, sizeof terms);  // lanes without a row are computed too
    for (int64_t n = 0; n < rows; n += CHAIN_ROWS) {
        const int lanes = rows - n < CHAIN_ROWS ? (int)(rows - n) : CHAIN_ROWS;
        __m256 acc[M] = {};
        for (int64_t column = 0; column < columns; column += most) {
            const int64_t width = columns - column < most ? columns - column : most;
            const int count = (int)(width / term_columns<type>());
            for (int r = 0; r < lanes; r++) {
                row_terms<type, M>(weights + (size_t)(n + r) * row_bytes, column, count, x, r, terms, end);
            }
            for (int m = 0; m < M; m++) acc[m] = chain(terms[m], count, acc[m]);
        }
        for (int m = 0; m < M; m++) store_floats(out + m * ldo + n, lanes, acc[m]);
    }
}

// 1 to FEW activation rows.
template <int type>
void product_few(const uint8_t *weights, size_t row_bytes, int64_t rows, int64_t columns, const kt_row *x,
                 int64_t count, float *out, int64_t ldo) {
    if (count == 1) few_rows<type, 1>(weights, row_bytes, rows, columns, x, out, ldo);
    if (count == 2) few_rows<type, 2>(weights, row_bytes, rows, columns, x, out, ldo);
    if (count == 3) few_rows<type, 3>(weights, row_bytes, rows, columns, x, out, ldo);
}

}  // namespace
