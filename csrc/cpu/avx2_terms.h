// Terms (avx2_chain.h) of one weight row with 1 to 3 activation rows, eight at a time. Each block is unpacked in
// registers and used for all activation rows.
#pragma once

#include "avx2_chain.h"
#include "avx2_unpack32.h"
#include "avx2_unpack_iq.h"

namespace {

// Numbers that make one term.
template <int type> constexpr int term_columns() {
    return Format<type>::kind == FLOAT16THS ? 16 : Format<type>::block;
}

// Where eight terms with activation row m go.
template <int M> struct Output {
    float *x[M], *y[M];
};

// Where there are fewer than eight terms the other vectors are 0.
template <int M> KT_INLINE void clear_rest(__m256i (*v)[8], int count) {
    for (int m = 0; m < M; m++) {
        for (int i = count; i < 8; i++) v[m][i] = _mm256_setzero_si256();
    }
}

// v * zero, zero a power of two.
template <int zero> KT_INLINE __m256i times_zero(__m256i v) {
    static_assert((zero & (zero - 1)) == 0, "written as a shift");
    return _mm256_slli_epi32(v, __builtin_ctz(zero));
}

template <int type> KT_INLINE __m256i products(__m256i w, const int8_t *q) {
    return is_signed<type>() ? signed_pair_products(w, load(q)) : pair_products(w, load(q));
}

// ---- blocks of 256 ----

// Sixteen int16 in natural order to even ones in the low half and odd ones in the high half. Byte pair j of each half
// then scales numbers 32 j to 32 j + 31, whose halves are groups of 16.
KT_INLINE __m256i part_scales(__m256i natural) {
    const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,  //
                                           0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(natural, order), 0xd8);
}

KT_INLINE __m256i pick_scale(__m256i parted, int j) {
    return _mm256_shuffle_epi8(parted, _mm256_set1_epi16((short)(2 * j | (2 * j + 1) << 8)));
}

// One block with M activation rows: the lanes of dot[m][i] add up to S, those of min[m][i] to M.
template <int type, int M>
KT_INLINE void super_sums(const Super &w, const kt_row *x, int64_t block, int i, __m256i (*dot)[8], __m256i (*min)[8]) {
    __m256i total[M] = {};
    const __m256i parted = part_scales(w.scale);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        const __m256i scale = pick_scale(parted, j);
#pragma GCC unroll 3
        for (int m = 0; m < M; m++) {
            const __m256i pairs = products<type>(w.quants[j], x[m].q + 256 * block + 32 * j);
            total[m] = _mm256_add_epi32(total[m], _mm256_madd_epi16(pairs, scale));
        }
    }
#pragma GCC unroll 3
    for (int m = 0; m < M; m++) {
        const __m256i sums = load(x[m].sums + 16 * block);
        if constexpr (Format<type>::kind == SUPER_MIN) {
            min[m][i] = _mm256_madd_epi16(w.min, sums);
        } else if constexpr (!is_signed<type>()) {
            total[m] = _mm256_sub_epi32(total[m], times_zero<Format<type>::zero>(_mm256_madd_epi16(w.scale, sums)));
        }
        dot[m][i] = total[m];
    }
}

template <int type, int M>
KT_INLINE void super_terms(const uint8_t *blocks, int64_t first, int count, const kt_row *x, Output<M> out) {
    __m256i dot[M][8], min[M][8];
    alignas(32) float d[8], dmin[8];
    if (count < 8) {
        clear_rest<M>(dot, count);
        clear_rest<M>(min, count);
        memset(d, 0, sizeof d);
        memset(dmin, 0, sizeof dmin);
    }
    for (int i = 0; i < count; i++) {
        Super w;
        Unpack<type>::super(blocks + i * Format<type>::bytes, w);
        super_sums<type, M>(w, x, first + i, i, dot, min);
        d[i] = w.d;
        if constexpr (Format<type>::kind == SUPER_MIN) dmin[i] = w.dmin;
    }
    for (int m = 0; m < M; m++) {
        const __m256 d_a = load_floats(x[m].d + first, count);
        const __m256 S = _mm256_cvtepi32_ps(sum_each(dot[m]));
        if constexpr (Format<type>::kind == SUPER_MIN) {
            const __m256 offset = _mm256_mul_ps(_mm256_load_ps(dmin), _mm256_cvtepi32_ps(sum_each(min[m])));
            _mm256_store_ps(out.x[m], d_a);
            _mm256_store_ps(out.y[m], _mm256_fmsub_ps(_mm256_load_ps(d), S, offset));
        } else {
            _mm256_store_ps(out.x[m], _mm256_mul_ps(_mm256_load_ps(d), d_a));
            _mm256_store_ps(out.y[m], S);
        }
    }
}

// ---- blocks of 32 ----

// Sums of 32 neighbours of q from sums of 16; nothing behind `count` blocks is read.
KT_INLINE __m256i sums_of_32(const int16_t *sums, int count) {
    return _mm256_madd_epi16(load_words(sums, count), ones16());
}

template <int type, int M>
KT_INLINE void block_terms(const uint8_t *blocks, int64_t first, int count, const kt_row *x, Output<M> out) {
    __m256i dot[M][8];
    if (count < 8) clear_rest<M>(dot, count);
    for (int i = 0; i < count; i++) {
        const __m256i w = Unpack<type>::quants(blocks + i * Format<type>::bytes);
#pragma GCC unroll 3
        for (int m = 0; m < M; m++) {
            dot[m][i] = _mm256_madd_epi16(products<type>(w, x[m].q + 32 * (first + i)), ones16());
        }
    }
    const __m256 d = Unpack<type>::d(blocks, count);
    for (int m = 0; m < M; m++) {
        const __m256 d_a = load_floats(x[m].d + first, count);
        const __m256i sums = sums_of_32(x[m].sums + 2 * first, count);
        __m256i S = sum_each(dot[m]);
        if constexpr (Format<type>::kind == BLOCK32_MIN) {
            const __m256 offset = _mm256_mul_ps(Unpack<type>::m(blocks, count), _mm256_cvtepi32_ps(sums));
            _mm256_store_ps(out.x[m], d_a);
            _mm256_store_ps(out.y[m], _mm256_fmadd_ps(d, _mm256_cvtepi32_ps(S), offset));
        } else {
            const __m256i zero = _mm256_set1_epi32(Format<type>::zero);
            if (!is_signed<type>()) S = _mm256_sub_epi32(S, _mm256_mullo_epi32(sums, zero));
            _mm256_store_ps(out.x[m], _mm256_mul_ps(d, d_a));
            _mm256_store_ps(out.y[m], _mm256_cvtepi32_ps(S));
        }
    }
}

// ---- NVFP4: one or two blocks of 64 give four or eight terms ----

// Sums of the halves of four vectors, in order: low half of v[0], high half of v[0], low half of v[1], ...
KT_INLINE __m256i sum_halves(const __m256i *v) {
    const __m256i sums = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    return _mm256_permutevar8x32_epi32(sums, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

KT_INLINE __m256 each_twice(__m256 v) {
    return _mm256_permutevar8x32_ps(v, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
}

template <int M>
KT_INLINE void nvfp4_terms(const uint8_t *blocks, int64_t column, int count, const kt_row *x, Output<M> out) {
    typedef Unpack<KT_NVFP4> Block;
    __m256i dot[M][4] = {};
    for (int i = 0; i < count / 2; i++) {
        const __m256i w = Block::quants(blocks + i / 2 * Format<KT_NVFP4>::bytes, i % 2);
        for (int m = 0; m < M; m++) {
            dot[m][i] = _mm256_madd_epi16(products<KT_NVFP4>(w, x[m].q + column + 32 * i), ones16());
        }
    }
    const __m256 d = Block::d(blocks, count / 4);
    for (int m = 0; m < M; m++) {
        const int16_t *from = x[m].sums + column / 16;
        const __m128i sums = count == 8 ? load_half(from) : _mm_loadl_epi64((const __m128i *)(const void *)from);
        const __m256i zero = _mm256_set1_epi32(Format<KT_NVFP4>::zero);
        const __m256i zeroes = _mm256_mullo_epi32(_mm256_cvtepi16_epi32(sums), zero);
        const __m256 d_a = each_twice(load_floats(x[m].d + column / 32, count / 2));
        _mm256_store_ps(out.x[m], _mm256_mul_ps(d, d_a));
        _mm256_store_ps(out.y[m], _mm256_cvtepi32_ps(_mm256_sub_epi32(sum_halves(dot[m]), zeroes)));
    }
}

// `count` terms (at most eight) from `column` on.
template <int type, int M>
KT_INLINE void make_terms(const uint8_t *row, int64_t column, int count, const kt_row *x, Output<M> out) {
    const uint8_t *blocks = row + column / Format<type>::block * Format<type>::bytes;
    if constexpr (Format<type>::kind == FLOAT16THS) {
        nvfp4_terms<M>(blocks, column, count, x, out);
    } else if constexpr (Format<type>::block == 32) {
        block_terms<type, M>(blocks, column / 32, count, x, out);
    } else {
        super_terms<type, M>(blocks, column / 256, count, x, out);
    }
}

}  // namespace
