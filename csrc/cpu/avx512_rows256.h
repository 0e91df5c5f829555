// Super-blocks times one to three activation rows. Weight rows are read one after another; each (row, block) leaves a
// vector of partial sums in a small buffer, and the sums and the float formula are done for sixteen rows together.
#pragma once

#include "avx512_formula.h"
#include "avx512_order.h"
#include "avx512_row_scales.h"

namespace {

// The part of the activation rows that a run of blocks needs, prepared once for sixteen weight rows.
template <int type, int count> struct Activations256 {
    static constexpr int blocks = LANES / count;
    __m512i start[count][blocks][4];   // types with a zero point: -zero * sum of each 4, where the dots start
    SumsForMins sums[count][blocks];   // SUPER_MIN
};

// What sixteen weight rows leave for a run of blocks: about 20 KiB, which stays in the first-level cache.
template <int type, int count> struct Partial256 {
    static constexpr int blocks = LANES / count;
    __m512i S[count][blocks][LANES];
    alignas(64) uint8_t mins[blocks][LANES][256 / Format<type>::sub];
    typename Unpack256<type>::Scale d[blocks][LANES], dmin[blocks][LANES];
};

template <int type, int count>
inline void prepare(const kt_row *x, int64_t first, int blocks, Activations256<type, count> &out) {
    const __m512i zero = _mm512_set1_epi8((char)Format<type>::zero);
    KT_UNROLL
    for (int m = 0; m < count; m++) {
        for (int c = 0; c < blocks; c++) {
            const int64_t b = first + c;
            if (Format<type>::kind == SUPER_MIN) {
                out.sums[m][c] = sums_for_mins<Format<type>::sub>(x[m].sums + b * 16);
                continue;
            }
            for (int i = 0; i < 4; i++) {
                const __m512i q = _mm512_loadu_si512(x[m].q + b * 256 + 64 * i);
                out.start[m][c][i] = _mm512_sub_epi32(zero512(), _mm512_dpbusd_epi32(zero512(), zero, q));
            }
        }
    }
}

template <int type, int count>
KT_INLINE void multiply_block(const uint8_t *block, const kt_row *x, const Activations256<type, count> &ready,
                              int64_t b, int c, int r, Partial256<type, count> &out) {
    constexpr bool mins = Format<type>::kind == SUPER_MIN;
    Super<typename Unpack256<type>::Scale> w;
    Unpack256<type>::unpack(block, w);
    out.d[c][r] = w.d;
    if constexpr (mins) {
        out.dmin[c][r] = w.dmin;
        store_mins<type>(block, out.mins[c][r]);
    }
    const RowScales<type> scales(block, w.scale);
    KT_UNROLL
    for (int m = 0; m < count; m++) {
        const int8_t *q = x[m].q + b * 256;
        __m512i dots[4];
        for (int i = 0; i < 4; i++) {
            const __m512i start = mins ? zero512() : ready.start[m][c][i];
            dots[i] = _mm512_dpbusd_epi32(start, w.u[i], _mm512_loadu_si512(q + 64 * i));
        }
        out.S[m][c][r] = scales.apply(dots);
    }
}

template <int type, int count>
KT_INLINE void add_blocks(const Partial256<type, count> &partial, const Activations256<type, count> &ready,
                          const kt_row *x, int64_t first, int blocks, __m512 *acc) {
    for (int c = 0; c < blocks; c++) {
        const __m512 d = load_scales(partial.d[c]);
        KT_UNROLL
        for (int m = 0; m < count; m++) {
            const float d_a = x[m].d[first + c];
            const __m512i S = sum_each_of_16(partial.S[m][c]);
            if constexpr (Format<type>::kind == SUPER_MIN) {
                const __m512i M = multiply_mins<type>(&partial.mins[c][0][0], ready.sums[m][c]);
                acc[m] = add_with_mins_16(acc[m], d, load_scales(partial.dmin[c]), d_a, S, M);
            } else {
                acc[m] = add_scaled_16(acc[m], d, d_a, S);
            }
        }
    }
}

template <int type, int count>
void rows_256(const uint8_t *weights, size_t row_bytes, int64_t rows, int64_t columns, const kt_row *x, float *out,
              int64_t ldo) {
    typedef Partial256<type, count> Partial;
    constexpr int bytes = Format<type>::bytes;
    Partial partial;
    memset(&partial, 0, sizeof partial);  // lanes without a row are computed too
    Activations256<type, count> ready;
    const int64_t blocks = columns / 256;
    for (int64_t n = 0; n < rows; n += LANES, weights += LANES * row_bytes) {
        const int here = rows - n < LANES ? (int)(rows - n) : LANES;
        __m512 acc[count] = {};
        for (int64_t first = 0; first < blocks; first += Partial::blocks) {
            const int run = blocks - first < Partial::blocks ? (int)(blocks - first) : Partial::blocks;
            if (n == 0 || blocks > Partial::blocks) prepare<type, count>(x, first, run, ready);
            const size_t offset = (size_t)first * bytes, run_bytes = (size_t)run * bytes;
            const Run order = {weights, row_bytes, offset, run_bytes, first + run == blocks};
            for (int r = 0; r < here; r++) {
                const uint8_t *block = order.row(r), *ahead = order.ahead_of(r);
                for (int c = 0; c < run; c++, block += bytes, ahead += bytes) {
                    prefetch(ahead, bytes);
                    multiply_block<type, count>(block, x, ready, first + c, c, r, partial);
                }
            }
            add_blocks<type, count>(partial, ready, x, first, run, acc);
        }
        KT_UNROLL
        for (int m = 0; m < count; m++) _mm512_mask_storeu_ps(out + m * ldo + n, first_lanes(here), acc[m]);
    }
}

}  // namespace
