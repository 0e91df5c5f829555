// What stands between matrix products: norms, the parts of a softmax, sums of values. Lane by lane the formulas of
// contract.h; sixteen lanes are two vectors.
#pragma once

#include "avx2_float.h"

namespace {

// Runs step(lane, i, how many) on every eight numbers; `lane` is 0 for the first eight of sixteen, else 1.
template <class Step> KT_INLINE void by_eight(int64_t count, Step step) {
    for (int64_t i = 0; i < count; i += 8) step((int)(i / 8 % 2), i, count - i < 8 ? count - i : (int64_t)8);
}

void rms_norm(const float *x, const float *weight, int unit_offset, float eps, int64_t count, float *out) {
    __m256 lanes[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    int64_t k = 0;
    for (; k + 16 <= count; k += 16) {
        const __m256 low = _mm256_loadu_ps(x + k), high = _mm256_loadu_ps(x + k + 8);
        lanes[0] = _mm256_fmadd_ps(low, low, lanes[0]);
        lanes[1] = _mm256_fmadd_ps(high, high, lanes[1]);
    }
    for (int half = 0; half < 2 && k < count; half++, k += 8) {
        const __m256 left = load_floats(x + k, count - k);  // squares are not below 0: adding 0 changes no lane
        lanes[half] = _mm256_fmadd_ps(left, left, lanes[half]);
    }
    const __m256 s = all(norm_factor(sum_lanes(lanes[0], lanes[1]), count, eps));
    by_eight(count, [=](int, int64_t i, int64_t some) {
        __m256 y = _mm256_mul_ps(load_floats(x + i, some), s);
        if (weight) {
            const __m256 w = load_floats(weight + i, some);
            y = _mm256_mul_ps(y, unit_offset ? _mm256_add_ps(all(1.0f), w) : w);
        }
        store_floats(out + i, some, y);
    });
}

// max_ps(x, top) is top where x is NaN.
float largest(const float *x, int64_t count) {
    __m256 top = all(-INFINITY);
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) top = _mm256_max_ps(_mm256_loadu_ps(x + i), top);
    alignas(32) float lane[8];
    _mm256_store_ps(lane, top);
    for (; i < count; i++) lane[0] = x[i] > lane[0] ? x[i] : lane[0];
    float best = lane[0];
    for (int k = 1; k < 8; k++) best = lane[k] > best ? lane[k] : best;
    return best + 0.0f;
}

float exponentials(float *x, int64_t count, float shift) {
    __m256 lanes[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    by_eight(count, [=, &lanes](int half, int64_t i, int64_t some) {
        const __m256 y = exponential(_mm256_sub_ps(load_floats(x + i, some), all(shift)));
        store_floats(x + i, some, y);
        const __m256 live = _mm256_castsi256_ps(first_lanes(some));
        lanes[half] = _mm256_add_ps(lanes[half], _mm256_and_ps(y, live));
    });
    return sum_lanes(lanes[0], lanes[1]);
}

KT_INLINE __m256 tanh_of(__m256 x) {
    const __m256 sign = _mm256_and_ps(x, all(-0.0f)), size = _mm256_xor_ps(x, sign);
    const __m256 z = _mm256_mul_ps(x, x);
    __m256 p = _mm256_fmadd_ps(all(TANH_C11), z, all(TANH_C9));
    p = _mm256_fmadd_ps(p, z, all(TANH_C7));
    p = _mm256_fmadd_ps(p, z, all(TANH_C5));
    p = _mm256_fmadd_ps(p, z, all(TANH_C3));
    const __m256 small = _mm256_fmadd_ps(_mm256_mul_ps(p, z), x, x);
    const __m256 power = _mm256_add_ps(exponential(_mm256_add_ps(size, size)), all(1.0f));
    const __m256 large = _mm256_or_ps(_mm256_sub_ps(all(1.0f), _mm256_div_ps(all(2.0f), power)), sign);
    return _mm256_blendv_ps(large, small, _mm256_cmp_ps(size, all(TANH_SMALL), _CMP_LT_OQ));
}

void softcap(float *x, int64_t count, float cap) {
    by_eight(count, [=](int, int64_t i, int64_t some) {
        const __m256 y = tanh_of(_mm256_div_ps(load_floats(x + i, some), all(cap)));
        store_floats(x + i, some, _mm256_mul_ps(all(cap), y));
    });
}

void logistic(float *x, int64_t count) {
    by_eight(count, [=](int, int64_t i, int64_t some) {
        const __m256 power = exponential(_mm256_xor_ps(load_floats(x + i, some), all(-0.0f)));
        store_floats(x + i, some, _mm256_div_ps(all(1.0f), _mm256_add_ps(all(1.0f), power)));
    });
}

// R rows by V vectors of eight columns stay in registers while all values pass.
template <int R, int V>
KT_INLINE void sum_block(const float *p, int64_t ldp, const float *v, int64_t ldv, int64_t count, float *out,
                         int64_t ldo) {
    __m256 sum[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
        for (int i = 0; i < V; i++) sum[r][i] = _mm256_loadu_ps(out + r * ldo + 8 * i);
    }
    for (int64_t j = 0; j < count; j++, v += ldv) {
        __m256 value[V];
#pragma GCC unroll 8
        for (int i = 0; i < V; i++) value[i] = _mm256_loadu_ps(v + 8 * i);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const __m256 weight = _mm256_broadcast_ss(p + r * ldp + j);
#pragma GCC unroll 8
            for (int i = 0; i < V; i++) sum[r][i] = _mm256_fmadd_ps(weight, value[i], sum[r][i]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
        for (int i = 0; i < V; i++) _mm256_storeu_ps(out + r * ldo + 8 * i, sum[r][i]);
    }
}

// R rows: as many columns at a time as registers hold, then eight at a time, then what is left.
template <int R>
void sum_rows(const float *p, int64_t ldp, const float *v, int64_t ldv, int64_t count, int64_t width, float *out,
              int64_t ldo) {
    constexpr int V = R == 1 ? 8 : (R == 2 ? 4 : 2);
    int64_t d = 0;
    for (; d + 8 * V <= width; d += 8 * V) sum_block<R, V>(p, ldp, v + d, ldv, count, out + d, ldo);
    for (; d + 8 <= width; d += 8) sum_block<R, 1>(p, ldp, v + d, ldv, count, out + d, ldo);
    for (int r = 0; r < R && d < width; r++) {
        for (int64_t j = 0; j < count; j++) {
            for (int64_t i = d; i < width; i++) {
                out[r * ldo + i] = fused(p[r * ldp + j], v[j * ldv + i], out[r * ldo + i]);
            }
        }
    }
}

void weighted_sum(const float *p, int64_t ldp, int64_t rows, const float *v, int64_t ldv, int64_t count, int64_t width,
                  float *out, int64_t ldo) {
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) sum_rows<4>(p + r * ldp, ldp, v, ldv, count, width, out + r * ldo, ldo);
    switch (rows - r) {
        case 1: return sum_rows<1>(p + r * ldp, ldp, v, ldv, count, width, out + r * ldo, ldo);
        case 2: return sum_rows<2>(p + r * ldp, ldp, v, ldv, count, width, out + r * ldo, ldo);
        case 3: return sum_rows<3>(p + r * ldp, ldp, v, ldv, count, width, out + r * ldo, ldo);
    }
}

void blend(float a, float b, const float *in, int64_t count, float *out) {
    by_eight(count, [=](int, int64_t i, int64_t some) {
        const __m256 kept = _mm256_mul_ps(all(a), load_floats(out + i, some));
        store_floats(out + i, some, _mm256_fmadd_ps(all(b), load_floats(in + i, some), kept));
    });
}

}  // namespace
