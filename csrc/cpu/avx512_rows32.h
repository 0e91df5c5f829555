// Blocks of 32 times one to three activation rows. Weight rows are read one after another; the integer sums of sixteen
// blocks are reduced together, kept for sixteen rows, transposed, and the float formula is done for those rows at once.
#pragma once

#include "avx512_formula.h"
#include "avx512_order.h"
#include "avx512_unpack32.h"

namespace {

constexpr int RUN32 = 128;  // blocks of a row whose sums are kept: 4096 columns

template <int type, int count> struct Partial32 {
    alignas(64) int32_t S[count][LANES][RUN32];
    typename Unpack32<type>::Scale d[RUN32][LANES], m[RUN32][LANES];
};

// Partial sums of blocks 2 i and 2 i + 1 in the halves of dots[m][i], for `blocks` <= 16 blocks from block b on.
template <int type, int count>
KT_INLINE void multiply_pairs(const uint8_t *block, const kt_row *x, int64_t b, int blocks, __m512i (*dots)[8]) {
    constexpr int bytes = Format<type>::bytes;
    for (int i = 0; i < blocks / 2; i++) {
        const __m512i u = Unpack32<type>::pair(block + 2 * i * bytes, block + (2 * i + 1) * bytes);
        KT_UNROLL
        for (int m = 0; m < count; m++) {
            dots[m][i] = _mm512_dpbusd_epi32(zero512(), u, _mm512_loadu_si512(x[m].q + (b + 2 * i) * 32));
        }
    }
    if (blocks % 2) {
        const uint8_t *last = block + (blocks - 1) * bytes;
        const __m512i u = Unpack32<type>::pair(last, last);
        KT_UNROLL
        for (int m = 0; m < count; m++) {
            const __m512i q = _mm512_zextsi256_si512(load256(x[m].q + (b + blocks - 1) * 32));
            dots[m][blocks / 2] = _mm512_dpbusd_epi32(zero512(), u, q);
        }
    }
}

// The sums of `blocks` <= 16 blocks, lane = block, less the zero point's part.
template <int type> KT_INLINE __m512i sums_of_blocks(const __m512i *dots, const kt_row &x, int64_t b, int blocks) {
    const __m512i order = _mm512_set_epi32(15, 11, 14, 10, 13, 9, 12, 8, 7, 3, 6, 2, 5, 1, 4, 0);
    const __m512i S = _mm512_permutexvar_epi32(order, sum_each_half_of_8(dots));
    if (Format<type>::zero == 0) return S;
    const __mmask32 present = (__mmask32)((1ull << (2 * blocks)) - 1);
    const __m512i sums = _mm512_maskz_loadu_epi16(present, x.sums + 2 * b);
    return _mm512_add_epi32(S, _mm512_madd_epi16(sums, _mm512_set1_epi16((short)-Format<type>::zero)));
}

template <int type, int count>
KT_INLINE void multiply_sixteen(const uint8_t *block, const kt_row *x, int64_t first, int c, int blocks, int r,
                                Partial32<type, count> &out) {
    typedef Unpack32<type> Unpack;
    __m512i dots[count][8];
    if (blocks == 16) {  // a constant, so that everything stays in registers
        multiply_pairs<type, count>(block, x, first + c, 16, dots);
    } else {
        memset(dots, 0, sizeof dots);
        multiply_pairs<type, count>(block, x, first + c, blocks, dots);
    }
    KT_UNROLL
    for (int m = 0; m < count; m++) {
        _mm512_store_si512(&out.S[m][r][c], sums_of_blocks<type>(dots[m], x[m], first + c, blocks));
    }
    for (int i = 0; i < blocks; i++, block += Format<type>::bytes) {
        out.d[c + i][r] = Unpack::d(block);
        if constexpr (Format<type>::kind == BLOCK32_MIN) out.m[c + i][r] = Unpack::m(block);
    }
}

template <int type>
KT_INLINE __m512 add_block32(__m512 acc, __m512 d, __m512 offset, const kt_row &x, int64_t b, __m512i S) {
    if (Format<type>::kind == BLOCK32) return add_scaled_16(acc, d, x.d[b], S);
    const float bs = (float)(x.sums[2 * b] + x.sums[2 * b + 1]);
    return add_with_offset_16(acc, d, offset, x.d[b], S, bs);
}

template <int type, int count>
KT_INLINE void add_run32(const Partial32<type, count> &partial, const kt_row *x, int64_t first, int run, __m512 *acc) {
    KT_UNROLL
    for (int m = 0; m < count; m++) {
        for (int c = 0; c < run; c += 4) {
            __m512i S[4];
            transpose_16x4((const uint8_t *)&partial.S[m][0][c], sizeof partial.S[m][0], S);
            for (int i = 0; i < 4 && c + i < run; i++) {
                acc[m] = add_block32<type>(acc[m], load_scales(partial.d[c + i]), load_scales(partial.m[c + i]), x[m],
                                           first + c + i, S[i]);
            }
        }
    }
}

template <int type, int count>
void rows_32(const uint8_t *weights, size_t row_bytes, int64_t rows, int64_t columns, const kt_row *x, float *out,
             int64_t ldo) {
    constexpr int bytes = Format<type>::bytes;
    Partial32<type, count> partial;
    memset(&partial, 0, sizeof partial);  // lanes without a row are computed too
    const int64_t blocks = columns / 32;
    for (int64_t n = 0; n < rows; n += LANES, weights += LANES * row_bytes) {
        const int here = rows - n < LANES ? (int)(rows - n) : LANES;
        __m512 acc[count] = {};
        for (int64_t first = 0; first < blocks; first += RUN32) {
            const int run = blocks - first < RUN32 ? (int)(blocks - first) : RUN32;
            const size_t offset = (size_t)first * bytes, run_bytes = (size_t)run * bytes;
            const Run order = {weights, row_bytes, offset, run_bytes, first + run == blocks};
            for (int r = 0; r < here; r++) {
                const uint8_t *block = order.row(r), *ahead = order.ahead_of(r);
                for (int c = 0; c < run; c += 16, block += 16 * bytes, ahead += 16 * bytes) {
                    prefetch(ahead, 16 * bytes);
                    const int left = run - c < 16 ? run - c : 16;
                    multiply_sixteen<type, count>(block, x, first, c, left, r, partial);
                }
            }
            add_run32<type, count>(partial, x, first, run, acc);
        }
        KT_UNROLL
        for (int m = 0; m < count; m++) _mm512_mask_storeu_ps(out + m * ldo + n, first_lanes(here), acc[m]);
    }
}

}  // namespace
