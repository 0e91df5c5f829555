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

// `height` weight rows by `count` activation rows, so that the FMA chains overlap and loads are shared.
template <int type, int height, int count>
void float_block(const uint8_t *weights, size_t row_bytes, int64_t columns, const float *const *x, float *out,
                 int64_t ldo) {
    constexpr int size = Format<type>::bytes;
    __m512 lane[height][count] = {};
    int64_t k = 0;
    for (; k + LANES <= columns; k += LANES) {
        __m512 a[count];
        KT_UNROLL
        for (int m = 0; m < count; m++) a[m] = _mm512_loadu_ps(x[m] + k);
        KT_UNROLL
        for (int r = 0; r < height; r++) {
            const __m512 w = Widen<type>::load(weights + (size_t)r * row_bytes + k * size);
            KT_UNROLL
            for (int m = 0; m < count; m++) lane[r][m] = _mm512_fmadd_ps(w, a[m], lane[r][m]);
        }
    }
    const __mmask16 tail = first_lanes((int)(columns - k));
    KT_UNROLL
    for (int r = 0; r < height && tail; r++) {
        const __m512 w = Widen<type>::load(weights + (size_t)r * row_bytes + k * size, tail);
        KT_UNROLL
        for (int m = 0; m < count; m++) {
            // Lanes past the end must stay as they are: adding 0 * 0 would turn -0 into +0.
            lane[r][m] = _mm512_mask3_fmadd_ps(w, _mm512_maskz_loadu_ps(tail, x[m] + k), lane[r][m], tail);
        }
    }
    KT_UNROLL
    for (int r = 0; r < height; r++) {
        KT_UNROLL
        for (int m = 0; m < count; m++) out[m * ldo + r] = sum_of_lanes(lane[r][m]);
    }
}

template <int type, int height, int count>
void float_rows(const uint8_t *weights, size_t row_bytes, int64_t rows, int64_t columns, const float *const *x,
                float *out, int64_t ldo) {
    int64_t n = 0;
    for (; n + height <= rows; n += height) {
        float_block<type, height, count>(weights + (size_t)n * row_bytes, row_bytes, columns, x, out + n, ldo);
    }
    for (; n < rows; n++) {
        float_block<type, 1, count>(weights + (size_t)n * row_bytes, row_bytes, columns, x, out + n, ldo);
    }
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
