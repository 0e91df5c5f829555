// Products with weights stored as floats. Sixteen lanes, lane k mod 16, are two vectors for each output. Three weight
// rows times two activation rows are computed at a time, so that every number loaded is used several times.
#pragma once

#include "avx2_elements.h"

namespace {

constexpr int WEIGHT_ROWS = 3;
constexpr int ACTIVATION_ROWS = 2;

// Eight stored numbers.
template <int type> KT_INLINE __m256 eight_floats(const uint8_t *p) {
    if constexpr (type == KT_F16) return floats_from_f16(p);
    if constexpr (type == KT_BF16) return floats_from_bf16(p);
    return _mm256_castsi256_ps(load(p));
}

// Eight columns; w[r] and x[c] point to them. In this order few numbers are in registers besides the lanes.
template <int type, int R, int C>
KT_INLINE void add_eight(const uint8_t *const *w, const float *const *x, __m256 (*lanes)[C]) {
    __m256 weight[R];
#pragma GCC unroll 3
    for (int r = 0; r < R; r++) weight[r] = eight_floats<type>(w[r]);
#pragma GCC unroll 3
    for (int c = 0; c < C; c++) {
        const __m256 a = _mm256_loadu_ps(x[c]);
#pragma GCC unroll 3
        for (int r = 0; r < R; r++) lanes[r][c] = _mm256_fmadd_ps(weight[r], a, lanes[r][c]);
    }
}

// The last `left` (1 to 7) columns; nothing behind them is read. Lanes that have no number keep their bits: adding
// 0 * 0 would turn -0 into +0.
template <int type, int R, int C>
void add_last(const uint8_t *const *w, const float *const *x, int64_t left, __m256 (*lanes)[C]) {
    alignas(32) uint8_t weight[R][32] = {};
    alignas(32) float activation[C][8] = {};
    const uint8_t *weights[R];
    const float *activations[C];
    __m256 sums[R][C];
    for (int r = 0; r < R; r++) {
        memcpy(weight[r], w[r], (size_t)left * Format<type>::bytes);
        weights[r] = weight[r];
    }
    for (int c = 0; c < C; c++) {
        memcpy(activation[c], x[c], (size_t)left * sizeof(float));
        activations[c] = activation[c];
    }
    memcpy(sums, lanes, sizeof sums);
    add_eight<type, R, C>(weights, activations, sums);
    const __m256 live = _mm256_castsi256_ps(first_lanes(left));
    for (int r = 0; r < R; r++) {
        for (int c = 0; c < C; c++) lanes[r][c] = _mm256_blendv_ps(lanes[r][c], sums[r][c], live);
    }
}

// The tree of contract.h: lane[i] += lane[i + 8], + 4, + 2, + 1.
KT_INLINE float sum_lanes(__m256 first, __m256 second) {
    const __m256 eight = _mm256_add_ps(first, second);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// R weight rows times C activation rows.
template <int type, int R, int C>
void float_dots(const uint8_t *weights, size_t row_bytes, int64_t columns, const float *const *x, float *out,
                int64_t ldo) {
    constexpr int bytes = Format<type>::bytes;
    __m256 lanes[2][R][C];
    const uint8_t *w[R];
    const float *a[C];
    for (int r = 0; r < R; r++) w[r] = weights + (size_t)r * row_bytes;
    for (int c = 0; c < C; c++) a[c] = x[c];
    for (int r = 0; r < R; r++) {
        for (int c = 0; c < C; c++) lanes[0][r][c] = lanes[1][r][c] = _mm256_setzero_ps();
    }
    const auto advance = [&w, &a]() __attribute__((always_inline)) {
        for (int r = 0; r < R; r++) w[r] += 8 * bytes;
        for (int c = 0; c < C; c++) a[c] += 8;
    };
    for (int64_t k = 0; k + 16 <= columns; k += 16) {
        add_eight<type, R, C>(w, a, lanes[0]);
        advance();
        add_eight<type, R, C>(w, a, lanes[1]);
        advance();
    }
    const int64_t left = columns % 16;
    if (left >= 8) {
        add_eight<type, R, C>(w, a, lanes[0]);
        advance();
    }
    if (left % 8) add_last<type, R, C>(w, a, left % 8, lanes[left / 8]);
    for (int r = 0; r < R; r++) {
        for (int c = 0; c < C; c++) out[c * ldo + r] = sum_lanes(lanes[0][r][c], lanes[1][r][c]);
    }
}

// R weight rows times all activation rows.
template <int type, int R>
void float_rows(const uint8_t *weights, size_t row_bytes, int64_t columns, const float *const *x, int64_t count,
                float *out, int64_t ldo) {
    int64_t m = 0;
    for (; m + ACTIVATION_ROWS <= count; m += ACTIVATION_ROWS) {
        float_dots<type, R, ACTIVATION_ROWS>(weights, row_bytes, columns, x + m, out + m * ldo, ldo);
    }
    if (count - m == 1) float_dots<type, R, 1>(weights, row_bytes, columns, x + m, out + m * ldo, ldo);
}

template <int type>
void float_product(const uint8_t *weights, size_t row_bytes, int64_t rows, int64_t columns, const float *const *x,
                   int64_t count, float *out, int64_t ldo) {
    int64_t n = 0;
    for (; n + WEIGHT_ROWS <= rows; n += WEIGHT_ROWS) {
        float_rows<type, WEIGHT_ROWS>(weights + (size_t)n * row_bytes, row_bytes, columns, x, count, out + n, ldo);
    }
    for (; n < rows; n++) {
        float_rows<type, 1>(weights + (size_t)n * row_bytes, row_bytes, columns, x, count, out + n, ldo);
    }
}

}  // namespace
