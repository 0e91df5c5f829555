// Four and more activation rows: sixteen weight rows by 256 columns are unpacked and interleaved once into a tile that
// stays in the first-level cache (lane = weight row), then multiplied with up to 128 activation rows.
#pragma once

#include "avx512_formula.h"
#include "avx512_order.h"
#include "avx512_unpack_iq.h"

namespace {

constexpr int TILE_COLUMNS = 256;
constexpr int TILE_COUNT = 128;  // activation rows that share an unpacking
constexpr int STEP = 8;          // activation rows whose sums are in registers

struct Tile {
    __m512i u[64];      // numbers 4 i .. 4 i + 3 of every row
    __m512i scale[16];  // SUPER: of 16-group j, as add_product wants it
    __m512i min[8];     // SUPER_MIN: of 16-groups 2 j and 2 j + 1, an int16 each
    __m512 d[16], m[16];  // SUPER: [0] only (m is dmin); else one for each block, NVFP4: for each 16 numbers
};

// The same before it is interleaved.
template <class Scale> struct Staging {
    alignas(64) uint8_t u[LANES][TILE_COLUMNS];
    int16_t scale[LANES][16], min[LANES][16];
    Scale d[16][LANES], m[16][LANES];
};

// Activation rows of one product; tiles add to acc.
struct Sums {
    alignas(64) float acc[TILE_COUNT][LANES];
};

inline void interleave_numbers(const uint8_t (*u)[TILE_COLUMNS], int columns, Tile &tile) {
    for (int k = 0; k < columns; k += 16) transpose_16x4(&u[0][k], TILE_COLUMNS, tile.u + k / 4);
}

// `numbers` columns of the tile times `step` activation rows, whose pointers move on. The pointers are kept in
// registers of their own: with base + index addresses the processor would split each vpdpbusd from its load again.
template <int step, int numbers> KT_INLINE void add_span(const __m512i *u, const int8_t **q, __m512i *dot) {
    KT_UNROLL
    for (int i = 0; i < numbers / 4; i++) {
        const __m512i four = u[i];
        KT_UNROLL
        for (int m = 0; m < step; m++) dot[m] = add_dots(dot[m], four, q[m] + 4 * i);
    }
    KT_UNROLL
    for (int m = 0; m < step; m++) {
        q[m] += numbers;
        __asm__("" : "+r"(q[m]));
    }
}

// What the next tile will read: the columns that follow, or those at the start of the next sixteen rows.
template <int type>
inline void prefetch_next(const uint8_t *weights, size_t row_bytes, int rows, int64_t k, int64_t columns) {
    constexpr int block = Format<type>::block, bytes = Format<type>::bytes;
    const int64_t next = k + TILE_COLUMNS;
    weights += next < columns ? (size_t)(next / block) * bytes : LANES * row_bytes;
    for (int r = 0; r < rows; r++) prefetch(weights + (size_t)r * row_bytes, TILE_COLUMNS / block * bytes);
}

// The loop over a matrix. Kernel has type, Scale, fill (weights to a tile) and multiply (a tile by up to STEP rows).
template <class Kernel>
void tiles(const uint8_t *weights, size_t row_bytes, int64_t rows, int64_t columns, const kt_row *x, int64_t count,
           float *out, int64_t ldo) {
    Staging<typename Kernel::Scale> staging;
    memset(&staging, 0, sizeof staging);  // lanes without a row are computed too
    Tile tile;
    Sums sums;
    for (int64_t n = 0; n < rows; n += LANES, weights += LANES * row_bytes) {
        const int here = rows - n < LANES ? (int)(rows - n) : LANES;
        for_parts(count, TILE_COUNT, [&](int64_t first, int64_t part) {
            memset(&sums, 0, (size_t)part * sizeof sums.acc[0]);
            for (int64_t k = 0; k < columns; k += TILE_COLUMNS) {
                const int width = columns - k < TILE_COLUMNS ? (int)(columns - k) : TILE_COLUMNS;
                Kernel::fill(weights, row_bytes, here, k, width, staging, tile);
                prefetch_next<Kernel::type>(weights, row_bytes, here, k, columns);
                for_parts(part, STEP, [&](int64_t m, int64_t step) {
                    Kernel::multiply((int)step, tile, x + first + m, k, width, sums.acc + m);
                });
            }
            for (int64_t m = 0; m < part; m++) {
                _mm512_mask_storeu_ps(out + (first + m) * ldo + n, first_lanes(here), _mm512_load_ps(sums.acc[m]));
            }
        });
    }
}

}  // namespace
