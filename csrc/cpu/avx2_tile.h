// Products with many activation rows: a panel of eight weight rows (avx2_panel.h) times groups of up to four activation
// rows, which enter by a broadcast of four bytes. Lane r of every accumulator belongs to weight row r, so nothing is
// summed across lanes.
#pragma once

#include "avx2_panel.h"

namespace {

constexpr int TILE_COUNT = 128;  // activation rows that one filling of a panel serves
constexpr int GROUP = 4;         // activation rows at a time

// Four bytes of a weight row times four bytes of each activation row, in int16 pairs.
template <int depth> KT_INLINE __m256i four_products(__m256i w, const int8_t *q) {
    return depth == 0 ? signed_pair_products(w, broadcast4(q)) : pair_products(w, broadcast4(q));
}

// a + b that the compiler leaves where it is: it would turn the chains below into trees, whose parts do not fit in the
// registers.
KT_INLINE __m256i add_here16(__m256i a, __m256i b) {
    __m256i sum = _mm256_add_epi16(a, b);
    __asm__("" : "+x"(sum));
    return sum;
}
KT_INLINE __m256i add_here32(__m256i a, __m256i b) {
    __m256i sum = _mm256_add_epi32(a, b);
    __asm__("" : "+x"(sum));
    return sum;
}

// total[m] += scale * dot over `fours` groups of four columns; quants and q[m] + column are at the first of them.
template <int depth, int fours, int M>
KT_INLINE void add_dots(const __m256i *quants, const int8_t *const *q, int64_t column, __m256i scale, __m256i *total) {
    constexpr int step = depth == 0 ? 1 : depth < fours ? depth : fours;
#pragma GCC unroll 8
    for (int i = 0; i < fours; i += step) {
        __m256i sum[M];
#pragma GCC unroll 8
        for (int s = 0; s < step; s++) {
            const __m256i w = quants[i + s];
#pragma GCC unroll 4
            for (int m = 0; m < M; m++) {
                const __m256i pairs = four_products<depth>(w, q[m] + column + 4 * (i + s));
                sum[m] = s == 0 ? pairs : add_here16(sum[m], pairs);
            }
        }
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) total[m] = add_here32(total[m], _mm256_madd_epi16(sum[m], scale));
    }
}

// Sum over 16s of factor * sum of q, `factor` being scales or mins of a panel.
KT_INLINE __m256i weighted_sums(const __m256i *factor, const int16_t *sums) {
    __m256i total = _mm256_madd_epi16(factor[0], broadcast4(sums));
#pragma GCC unroll 8
    for (int j = 1; j < 8; j++) {
        total = _mm256_add_epi32(total, _mm256_madd_epi16(factor[j], broadcast4(sums + 2 * j)));
    }
    return total;
}

// The int16 of every pair that scales the first or the second 16 numbers, twice.
KT_INLINE __m256i first_twice(__m256i pairs) {
    return _mm256_shuffle_epi8(pairs, _mm256_set_epi64x(0x0d0c0d0c09080908, 0x0504050401000100,  //
                                                        0x0d0c0d0c09080908, 0x0504050401000100));
}
KT_INLINE __m256i second_twice(__m256i pairs) {
    return _mm256_shuffle_epi8(pairs, _mm256_set_epi64x(0x0f0e0f0e0b0a0b0a, 0x0706070603020302,  //
                                                        0x0f0e0f0e0b0a0b0a, 0x0706070603020302));
}

// ---- one panel with M activation rows: acc[m] lane r continues by the terms of the panel ----

// Blocks of 256. zero is a power of two, or 0 where nothing is to be taken out.
template <int depth, int sub, bool with_min, int zero> struct SuperTile {
    template <int M> static void run(const Panel &panel, const kt_row *x, int64_t column, int, __m256 *acc) {
        const int8_t *q[M];
        __m256i S[M];
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) {
            q[m] = x[m].q + column;
            S[m] = _mm256_setzero_si256();
            if constexpr (zero > 0) {
                const __m256i offset = times_zero<zero>(weighted_sums(panel.scale, x[m].sums + column / 16));
                S[m] = _mm256_sub_epi32(S[m], offset);
            }
        }
        for (int j = 0; j < 8; j++) {
            if constexpr (sub == 16) {
                add_dots<depth, 4, M>(panel.quants + 8 * j, q, 32 * j, first_twice(panel.scale[j]), S);
                add_dots<depth, 4, M>(panel.quants + 8 * j + 4, q, 32 * j + 16, second_twice(panel.scale[j]), S);
            } else {
                add_dots<depth, 8, M>(panel.quants + 8 * j, q, 32 * j, panel.scale[j], S);
            }
        }
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) {
            const __m256 d_a = _mm256_set1_ps(x[m].d[column / 256]);
            const __m256 dot = _mm256_cvtepi32_ps(S[m]);
            if constexpr (with_min) {
                const __m256 min = _mm256_cvtepi32_ps(weighted_sums(panel.min, x[m].sums + column / 16));
                const __m256 t = _mm256_fmsub_ps(panel.d[0], dot, _mm256_mul_ps(panel.m[0], min));
                acc[m] = _mm256_fmadd_ps(d_a, t, acc[m]);
            } else {
                acc[m] = _mm256_fmadd_ps(_mm256_mul_ps(panel.d[0], d_a), dot, acc[m]);
            }
        }
    }
};

// Blocks of 32.
template <int depth, bool with_min, int zero> struct BlockTile {
    template <int M> static void run(const Panel &panel, const kt_row *x, int64_t column, int count, __m256 *acc) {
        const int8_t *q[M];
        for (int m = 0; m < M; m++) q[m] = x[m].q + column;
        for (int i = 0; i < count / 32; i++) {
            __m256i S[M];
#pragma GCC unroll 4
            for (int m = 0; m < M; m++) {
                const __m256i sums = broadcast4(x[m].sums + column / 16 + 2 * i);
                S[m] = zero > 0 ? _mm256_madd_epi16(sums, _mm256_set1_epi16(-zero)) : _mm256_setzero_si256();
            }
            add_dots<depth, 8, M>(panel.quants + 8 * i, q, 32 * i, ones16(), S);
#pragma GCC unroll 4
            for (int m = 0; m < M; m++) {
                const __m256 d_a = _mm256_set1_ps(x[m].d[column / 32 + i]);
                const __m256 dot = _mm256_cvtepi32_ps(S[m]);
                if constexpr (with_min) {
                    const __m256i sums = _mm256_madd_epi16(broadcast4(x[m].sums + column / 16 + 2 * i), ones16());
                    const __m256 offset = _mm256_mul_ps(panel.m[i], _mm256_cvtepi32_ps(sums));
                    acc[m] = _mm256_fmadd_ps(d_a, _mm256_fmadd_ps(panel.d[i], dot, offset), acc[m]);
                } else {
                    acc[m] = _mm256_fmadd_ps(_mm256_mul_ps(panel.d[i], d_a), dot, acc[m]);
                }
            }
        }
    }
};

// NVFP4: a term for each 16 numbers.
struct Nvfp4Tile {
    template <int M> static void run(const Panel &panel, const kt_row *x, int64_t column, int count, __m256 *acc) {
        const int8_t *q[M];
        for (int m = 0; m < M; m++) q[m] = x[m].q + column;
        for (int i = 0; i < count / 16; i++) {
            __m256i S[M];
#pragma GCC unroll 4
            for (int m = 0; m < M; m++) {
                S[m] = _mm256_set1_epi32(-Format<KT_NVFP4>::zero * x[m].sums[column / 16 + i]);
            }
            add_dots<depth<KT_NVFP4>(), 4, M>(panel.quants + 4 * i, q, 16 * i, ones16(), S);
#pragma GCC unroll 4
            for (int m = 0; m < M; m++) {
                const __m256 d_a = _mm256_set1_ps(x[m].d[column / 32 + i / 2]);
                acc[m] = _mm256_fmadd_ps(_mm256_mul_ps(panel.d[i], d_a), _mm256_cvtepi32_ps(S[m]), acc[m]);
            }
        }
    }
};

// Types that need the same code share one instance.
template <int type> constexpr auto tile_of() {
    typedef Format<type> F;
    constexpr int zero = is_signed<type>() ? 0 : F::zero;
    if constexpr (F::kind == FLOAT16THS) {
        return Nvfp4Tile();
    } else if constexpr (F::block == 32) {
        return BlockTile<depth<type>(), F::kind == BLOCK32_MIN, zero>();
    } else {
        return SuperTile<depth<type>(), F::sub == 16 ? 16 : 32, F::kind == SUPER_MIN, zero>();
    }
}

template <class Tile>
void add_panel(const Panel &panel, const kt_row *x, int64_t count, int64_t column, int columns, __m256 *acc) {
    int64_t m = 0;
    for (; m + GROUP <= count; m += GROUP) Tile::template run<GROUP>(panel, x + m, column, columns, acc + m);
    if (count - m == 3) Tile::template run<3>(panel, x + m, column, columns, acc + m);
    if (count - m == 2) Tile::template run<2>(panel, x + m, column, columns, acc + m);
    if (count - m == 1) Tile::template run<1>(panel, x + m, column, columns, acc + m);
}

// A panel takes a few cache lines of each of eight rows, too scattered for the processor to foresee. So while one group
// of eight rows is computed, the next one is fetched in memory order, a share with each panel.
KT_INLINE void fetch_next(const uint8_t *group, size_t group_bytes, int64_t column, int width, int64_t columns) {
    const size_t from = group_bytes * (size_t)column / (size_t)columns;
    const size_t to = group_bytes * (size_t)(column + width) / (size_t)columns;
    fetch(group + from, group + to);
}

// Up to TILE_COUNT activation rows.
template <int type>
void tile_rows(const uint8_t *weights, size_t row_bytes, int64_t rows, int64_t columns, const kt_row *x, int64_t count,
               float *out, int64_t ldo) {
    typedef decltype(tile_of<type>()) Tile;
    const size_t group_bytes = PANEL_ROWS * row_bytes;
    Panel panel;
    __m256 acc[TILE_COUNT];
    for (int64_t n = 0; n < rows; n += PANEL_ROWS) {
        const PanelRows from = panel_rows(weights, row_bytes, n, rows);
        for (int64_t m = 0; m < count; m++) acc[m] = _mm256_setzero_ps();
        for (int64_t column = 0; column < columns; column += PANEL_COLUMNS) {
            const int width = columns - column < PANEL_COLUMNS ? (int)(columns - column) : PANEL_COLUMNS;
            if (n + 2 * PANEL_ROWS <= rows) fetch_next(from.row[0] + group_bytes, group_bytes, column, width, columns);
            fill_panel<type>(from, column, width, panel);
            add_panel<Tile>(panel, x, count, column, width, acc);
        }
        for (int64_t m = 0; m < count; m++) store_floats(out + m * ldo + n, rows - n, acc[m]);
    }
}

template <int type>
void product_many(const uint8_t *weights, size_t row_bytes, int64_t rows, int64_t columns, const kt_row *x,
                  int64_t count, float *out, int64_t ldo) {
    for (int64_t m = 0; m < count; m += TILE_COUNT) {
        const int64_t part = count - m < TILE_COUNT ? count - m : TILE_COUNT;
        tile_rows<type>(weights, row_bytes, rows, columns, x + m, part, out + m * ldo, ldo);
    }
}

}  // namespace
