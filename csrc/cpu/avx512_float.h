// Weights stored as floats: sixteen lanes (lane = column mod 16), each an FMA chain in ascending columns, and their sum
// as a tree.
#pragma once

#include "avx512_vec.h"

namespace {

// Sixteen weights as float32; the masked form reads (and keeps) the first columns of sixteen.
template <int type> struct Widen;

template <> struct Widen<KT_F32> {
    static __m512 load(const uint8_t *p) { return _mm512_loadu_ps(p); }
    static __m512 load(const uint8_t *p, __mmask16 m) { return _mm512_maskz_loadu_ps(m, p); }
};

template <> struct Widen<KT_F16> {
    static __m512 load(const uint8_t *p) { return _mm512_cvtph_ps(load256(p)); }
    static __m512 load(const uint8_t *p, __mmask16 m) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(m, p)); }
};

template <> struct Widen<KT_BF16> {
    static __m512 widen(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }
    static __m512 load(const uint8_t *p) { return widen(load256(p)); }
    static __m512 load(const uint8_t *p, __mmask16 m) { return widen(_mm256_maskz_loadu_epi16(m, p)); }
};

// lane[i] += lane[i + 8], then + 4, + 2, + 1.
inline float sum_of_lanes(__m512 lane) {
    const __m256 high8 = _mm512_extractf32x8_ps(lane, 1);
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(lane), high8);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// The same for `height` (2 to 8) vectors at once, into out[0 .. height - 1]: each step folds two vectors into one.
template <int height> KT_INLINE void store_sums(const __m512 *lane, float *out) {
    __m512 eight[4], four[2];
    KT_UNROLL
    for (int i = 0; i < 4; i++) {
        const __m512 a = 2 * i < height ? lane[2 * i] : _mm512_setzero_ps();
        const __m512 b = 2 * i + 1 < height ? lane[2 * i + 1] : _mm512_setzero_ps();
        eight[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    }
    KT_UNROLL
    for (int i = 0; i < 2; i++) {
        const __m512 a = eight[2 * i], b = eight[2 * i + 1];
        four[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    }
    const __m512d a = _mm512_castps_pd(four[0]), b = _mm512_castps_pd(four[1]);
    const __m512 two = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                                     _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    const __m512 one = _mm512_add_ps(two, _mm512_movehdup_ps(two));
    const __m512i places = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm512_mask_storeu_ps(out, first_lanes(height), _mm512_permutexvar_ps(places, one));
}

// `height` weight rows by `count` activation rows, so that the FMA chains overlap and loads are shared.
template <int type, int height, int count>
void float_block(const uint8_t *weights, size_t row_bytes, int64_t columns, const float *const *x, float *out,
                 int64_t ldo) {
    constexpr int size = Format<type>::bytes;
    __m512 lane[count][height] = {};
    int64_t k = 0;
    for (; k + LANES <= columns; k += LANES) {
        __m512 a[count];
        KT_UNROLL
        for (int m = 0; m < count; m++) a[m] = _mm512_loadu_ps(x[m] + k);
        KT_UNROLL
        for (int r = 0; r < height; r++) {
            const __m512 w = Widen<type>::load(weights + (size_t)r * row_bytes + k * size);
            KT_UNROLL
            for (int m = 0; m < count; m++) lane[m][r] = _mm512_fmadd_ps(w, a[m], lane[m][r]);
        }
    }
    const __mmask16 tail = first_lanes((int)(columns - k));
    KT_UNROLL
    for (int r = 0; r < height && tail; r++) {
        const __m512 w = Widen<type>::load(weights + (size_t)r * row_bytes + k * size, tail);
        KT_UNROLL
        for (int m = 0; m < count; m++) {
            // Lanes past the end must stay as they are: adding 0 * 0 would turn -0 into +0.
            lane[m][r] = _mm512_mask3_fmadd_ps(w, _mm512_maskz_loadu_ps(tail, x[m] + k), lane[m][r], tail);
        }
    }
    KT_UNROLL
    for (int m = 0; m < count; m++) {
        if (height == 1) out[m * ldo] = sum_of_lanes(lane[m][0]);
        else store_sums<height>(lane[m], out + m * ldo);
    }
}

template <int type, int height, int count>
void float_rows(const uint8_t *weights, size_t row_bytes, int64_t rows, int64_t columns, const float *const *x,
                float *out, int64_t ldo) {
    int64_t n = 0;
    const auto at = [&](int64_t row) { return weights + (size_t)row * row_bytes; };
    for (; n + height <= rows; n += height) float_block<type, height, count>(at(n), row_bytes, columns, x, out + n, ldo);
    for (; n + 4 <= rows; n += 4) float_block<type, 4, count>(at(n), row_bytes, columns, x, out + n, ldo);
    for (; n + 2 <= rows; n += 2) float_block<type, 2, count>(at(n), row_bytes, columns, x, out + n, ldo);
    if (n < rows) float_block<type, 1, count>(at(n), row_bytes, columns, x, out + n, ldo);
}

// Weight rows that stay in the second-level cache while all activation rows pass. A multiple of 6 and 8.
constexpr int64_t FLOAT_ROWS = 24;

template <int type>
void float_product(const uint8_t *weights, size_t row_bytes, int64_t rows, int64_t columns, const float *const *x,
                   int64_t count, float *out, int64_t ldo) {
    for (int64_t n = 0; n < rows; n += FLOAT_ROWS, weights += FLOAT_ROWS * row_bytes) {
        const int64_t here = rows - n < FLOAT_ROWS ? rows - n : FLOAT_ROWS;
        for_parts(count, 4, [&](int64_t m, int64_t part) {
            float *to = out + m * ldo + n;
            switch (part) {
                case 1: return float_rows<type, 8, 1>(weights, row_bytes, here, columns, x + m, to, ldo);
                case 2: return float_rows<type, 8, 2>(weights, row_bytes, here, columns, x + m, to, ldo);
                case 3: return float_rows<type, 6, 3>(weights, row_bytes, here, columns, x + m, to, ldo);
                default: return float_rows<type, 6, 4>(weights, row_bytes, here, columns, x + m, to, ldo);
            }
        });
    }
}

}  // namespace
